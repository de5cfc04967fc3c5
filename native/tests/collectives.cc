// Every collective, type and reduction over every layout, against the model.
#include <algorithm>

#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::collectives {

// A job on every layout as threads, and on some as forked processes: the same code runs in both.
void on_all_layouts(const std::function<void(Rank&)>& body) {
  for (const Layout& layout : all_layouts()) run_healthy(layout, {}, body);
  for (const char* name : sample<const char*>({"3+1", "2x1", "2x2"}, 1))
    run_healthy(layout(name), {.harness = Harness::kForked}, body);
}

TEST(every_type_and_reduction) {
  on_all_layouts([](Rank& rank) {
    const auto end = rank.all();
    std::uint32_t seed = 0;
    for (const Op op : kOps)
      for (const DType dtype : all_dtypes())
        for (const Reduction reduction : reductions_of(op, dtype))
          for (const std::size_t count : {0, 1, 3, 127, 1000})
            run_case(*end, {op, dtype, reduction, count, ++seed});
  });
}

TEST(in_place_all_reduce) {
  on_all_layouts([](Rank& rank) {
    const auto end = rank.all();
    for (const std::size_t count : {0, 1, 1001, 8192, 8193, 100'003})
      for (const DType dtype : {DType::kI32, DType::kC64})
        run_case(*end, {Op::kAllReduce, dtype, Reduction::kSum, count, 7, true});
  });
}

// The places where a message, a chunk or a change of method may begin: one element less, exactly
// there, one more.
std::vector<std::size_t> counts_around(const Clique& clique, DType dtype) {
  const auto size = static_cast<std::size_t>(clique.size());
  const std::size_t capacity = clique.capacity();
  const std::size_t processes = clique.groups().size();
  const std::size_t width = size_of(dtype);
  std::vector<std::size_t> counts;
  for (const std::size_t bytes :
       {std::size_t{8} << 10, std::size_t{32} << 10, std::size_t{64} << 10, capacity, 2 * capacity,
        capacity / size, capacity / processes, capacity / clique.max_local(),
        capacity / (clique.max_local() * size)})
    for (const std::size_t count : {bytes / width - 1, bytes / width, bytes / width + 1})
      counts.push_back(count);
  std::ranges::sort(counts);
  counts.erase(std::ranges::unique(counts).begin(), counts.end());
  return counts;
}

TEST(around_every_boundary) {
  on_all_layouts([](Rank& rank) {
    const auto end = rank.all();
    const Clique& clique = rank.job.clique(rank.layout.devices());
    for (const DType dtype : {DType::kF32, DType::kC128})
      for (const std::size_t count : counts_around(clique, dtype))
        for (const Op op : kOps) {
          // What moves bytes does not know their type. The buffers of the operations other than
          // all-reduce grow with the ranks; two chunks are seen by `several_megabytes`.
          const bool moves = op == Op::kAllGather || op == Op::kAllToAll;
          if (moves && dtype != DType::kF32) continue;
          if (op != Op::kAllReduce && count * size_of(dtype) > clique.capacity() + 64) continue;
          run_case(*end, case_of(op, dtype, count, 11));
        }
  });
}

TEST(several_megabytes) {
  on_all_layouts([](Rank& rank) {
    const auto end = rank.all();
    const auto size = static_cast<std::size_t>(rank.size());
    const std::size_t bytes = (3 << 20) + 24;
    run_case(*end, {Op::kAllReduce, DType::kF64, Reduction::kSum, bytes / 8, 1});
    run_case(*end, {Op::kAllReduce, DType::kU32, Reduction::kMax, bytes / 4, 2, true});
    run_case(*end, {Op::kReduceScatter, DType::kI64, Reduction::kProduct, bytes / 8 / size, 3});
    run_case(*end, {Op::kAllGather, DType::kC64, Reduction::kNone, bytes / 8 / size, 4});
    run_case(*end, {Op::kAllToAll, DType::kF64, Reduction::kNone, bytes / 8 / size, 5});
  });
}

TEST(groups_inside_a_job) {
  for (const Harness harness : kAll)
    run_healthy(layout("2x4"), {.harness = harness}, [](Rank& rank) {
      // Groups of one process, of one device, of some devices of both, in an order of its own.
      const std::vector<std::vector<int>> groups = {{0, 1, 2, 3}, {7, 5, 4, 6}, {rank.index},
                                                    {6, 0, 3},    {1, 7},       {4, 2}};
      for (const auto& group : groups) {
        if (std::ranges::find(group, rank.index) == group.end()) continue;
        const auto end = rank.end(group);
        for (const std::size_t count : {5, 30'000}) run_all(*end, DType::kI32, count, 3);
      }
    });
}

TEST(more_ranks_than_cores) {
  for (const Harness harness : kAll)
    run_healthy(one_rank_each(16), {.harness = harness, .oversubscribed = true, .cores = 1},
                [](Rank& rank) {
                  const auto end = rank.all();
                  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(rounds(40, 10)); ++i)
                    run_all(*end, DType::kI32, i * 25, i);
                });
}

}  // namespace lockstep::testing::collectives
