// Ranks that share their leader's work: every part is done once, and by several of them.
#include <random>
#include <thread>

#include "check.h"
#include "core/crew.h"
#include "harness.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::crews {

using namespace std::chrono_literals;

// A leader, which is the caller, and threads that wait for it as the members of a group do.
class Members {
 public:
  explicit Members(int count, std::chrono::nanoseconds spin) : crew(spin) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([&] { wait(); });
  }
  ~Members() {
    done_.advance();
    crew.release();
  }

  Crew crew;

 private:
  void wait() {
    const WaitLimits limits{&never_, Deadline(60), 0ns};
    Crew::Helper helper(crew, done_, 1, limits);
    wait_until(done_, 1, limits, &helper);
  }

  const std::atomic<std::uint32_t> never_{0};
  Counter done_;
  std::vector<std::jthread> threads_;
};

TEST(each_part_is_done_once) {
  for (const int helpers : {0, 1, 3}) {
    Members members(helpers, 100us);
    std::mt19937 random(7);
    std::vector<int> counts;
    for (int task = 0, tasks = rounds(20'000, 500); task < tasks; ++task) {
      const std::uint32_t parts = random() % 40;
      counts.assign(parts, 0);
      members.crew.run(parts, [&](std::uint32_t part) noexcept { ++counts[part]; });
      CHECK(std::ranges::all_of(counts, [](int count) { return count == 1; }));
    }
    std::vector<int> most(Crew::kMaxParts);
    members.crew.run(Crew::kMaxParts, [&](std::uint32_t part) noexcept { ++most[part]; });
    CHECK(std::ranges::all_of(most, [](int count) { return count == 1; }));
  }
}

// Each of the parts waits for the others, so as many threads have to do them.
bool meet(Crew& crew, std::uint32_t parts) {
  std::atomic<std::uint32_t> here{0}, met{0};
  crew.run(parts, [&](std::uint32_t) noexcept {
    here.fetch_add(1);
    const Deadline deadline(20);
    while (here.load() < parts && !deadline.passed()) std::this_thread::sleep_for(1ms);
    met.fetch_add(here.load() == parts);
  });
  return met.load() == parts;
}

TEST(members_that_spin_and_that_sleep_help) {
  Members members(3, 100us);
  CHECK(meet(members.crew, 4));
  std::this_thread::sleep_for(20ms);  // they sleep now
  CHECK(meet(members.crew, 4));
}

TEST(without_cores_of_their_own_they_sleep) {
  Members members(2, 0ns);
  CHECK(!members.crew.helps());
  const auto self = std::this_thread::get_id();
  std::atomic<int> others{0};
  members.crew.run(
      1000, [&](std::uint32_t) noexcept { others.fetch_add(std::this_thread::get_id() != self); });
  CHECK_EQUAL(others.load(), 0);
}

void every_collective(Rank& rank) {
  const auto end = rank.all();
  const auto size = static_cast<std::size_t>(rank.size());
  std::uint32_t seed = 0;
  for (const std::size_t bytes :
       {std::size_t{40} << 10, std::size_t{700} << 10, (3 << 20) + 24UL}) {
    run_case(*end, {Op::kAllReduce, DType::kF32, Reduction::kSum, bytes / 4, ++seed});
    run_case(*end, {Op::kAllReduce, DType::kC128, Reduction::kProduct, bytes / 16, ++seed, true});
    run_case(*end, {Op::kReduceScatter, DType::kF64, Reduction::kSum, bytes / 8 / size, ++seed});
    run_case(*end, {Op::kAllGather, DType::kI8, Reduction::kNone, bytes / size, ++seed});
    run_case(*end, {Op::kAllToAll, DType::kF64, Reduction::kNone, bytes / 8 / size, ++seed});
  }
}

// Runs a collective of one process, whose leader shares all of its work.
void within_a_process(Rank& rank) {
  std::vector<int> own = rank.layout.ranks_of(rank.process());
  const auto end = rank.end(own);
  run_all(*end, DType::kF32, 200'001, 5);
}

TEST(collectives_of_ranks_with_cores_of_their_own) {
  for (const char* name : sample<const char*>({"2x2", "3+1", "2x4"}, 1))
    for (const Harness harness : {Harness::kThreads, Harness::kHosts})
      run_healthy(layout(name), {.harness = harness, .cores = 8}, [](Rank& rank) {
        every_collective(rank);
        within_a_process(rank);
      });
}

}  // namespace lockstep::testing::crews
