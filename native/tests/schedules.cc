// Random programs: mixed operations on overlapping groups, from several threads of each rank.
#include <algorithm>
#include <random>

#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::schedules {

struct Step {
  std::size_t group;
  bool permute;
  Case what;
};

struct Program {
  std::vector<std::vector<int>> groups;
  std::vector<Step> steps;
};

// A group of two ranks or more in any order.
std::vector<int> some_ranks(std::mt19937& random, int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  std::ranges::shuffle(ranks, random);
  ranks.resize(2 + random() % static_cast<unsigned>(size - 1));
  return ranks;
}

Program draw(std::uint32_t seed, int size, std::size_t groups, std::size_t steps,
             std::size_t largest) {
  std::mt19937 random(seed);
  Program program;
  while (program.groups.size() < groups) {
    auto group = some_ranks(random, size);
    if (std::ranges::find(program.groups, group) == program.groups.end())
      program.groups.push_back(std::move(group));
  }
  for (std::size_t i = 0; i < steps; ++i) {
    Case what;
    what.op = static_cast<Op>(random() % 4);
    what.dtype = all_dtypes()[1 + random() % (all_dtypes().size() - 1)];
    const auto reductions = reductions_of(what.op, what.dtype);
    what.reduction = reductions[random() % reductions.size()];
    what.count = random() % (random() % 8 == 0 ? largest : 40);
    what.seed = static_cast<std::uint32_t>(i);
    program.steps.push_back({random() % groups, random() % 4 == 0, what});
  }
  return program;
}

// Every rank runs its part in the order of the program, so no order of arrival can deadlock.
void run_program(Rank& rank, const Program& program) {
  std::vector<std::unique_ptr<Communicator>> ends(program.groups.size());
  for (const Step& step : program.steps) {
    const auto& group = program.groups[step.group];
    if (std::ranges::find(group, rank.index) == group.end()) continue;
    auto& end = ends[step.group];
    if (!end) end = rank.end(group);
    if (!step.permute) {
      run_case(*end, step.what);
      continue;
    }
    const auto edges = ring(end->size(), static_cast<int>(step.what.seed));
    run_permute(*end, edges, step.what.count * 3, step.what.seed);
  }
}

TEST(mixed_operations_on_overlapping_groups) {
  for (const Harness harness : kAll)
    for (const char* name :
         sample<const char*>({"1x4", "3x2", "backwards", "2x2", "2x4", "4x1", "3+1"}, 3))
      for (int seed = 0; seed < rounds(3, 1); ++seed)
        run_healthy(layout(name), {.harness = harness}, [&](Rank& rank) {
          run_program(rank, draw(static_cast<std::uint32_t>(seed), rank.size(), 4, 150, 20'000));
        });
}

// Threads of a rank run programs on groups of their own, at the same time.
TEST(several_groups_in_flight) {
  constexpr int kThreads = 3;
  for (const Harness harness : kAll)
    for (const char* name : sample<const char*>({"3x2", "2x2", "3+1"}, 1))
      run_healthy(layout(name), {.harness = harness}, [&](Rank& rank) {
        // A group belongs to the thread whose number is its index modulo the threads.
        const Program whole = draw(77, rank.size(), 3 * kThreads, 400, 5'000);
        std::vector<std::string> errors(kThreads);
        in_threads(kThreads, [&](std::size_t t) {
          Program part{whole.groups, {}};
          for (const Step& step : whole.steps)
            if (step.group % kThreads == t) part.steps.push_back(step);
          try {
            run_program(rank, part);
          } catch (const std::exception& error) {
            errors[t] = error.what();
            rank.job.arena().abort(error.what());
          }
        });
        for (const std::string& error : errors) CHECK_EQUAL(error, "");
      });
}

TEST(many_small_operations) {
  for (const Harness harness : kAll)
    for (const char* name : {"2x1", "2x2"})
      run_healthy(layout(name), {.harness = harness}, [](Rank& rank) {
        const auto end = rank.all();
        const auto times = static_cast<std::uint32_t>(rounds(2000, 500));
        for (std::uint32_t i = 0; i < times; ++i) {
          const Op op = static_cast<Op>(i % 4);
          run_case(*end, case_of(op, DType::kI32, i % 9, i));
          if (i % 5 == 0) run_permute(*end, ring(rank.size()), i % 33, i);
        }
      });
}

}  // namespace lockstep::testing::schedules
