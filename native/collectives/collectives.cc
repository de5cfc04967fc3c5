#include "collectives/collectives.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {

namespace {

// Above this, adding up the same numbers in every process costs more than a second round.
constexpr std::size_t kOneRoundBytes = 32 << 10;

bool in_one_process(CollectiveContext& context, Calls) { return context.peers() == 1; }
bool is_small(CollectiveContext&, Calls calls) { return calls[0]->bytes() <= kOneRoundBytes; }
bool always(CollectiveContext&, Calls) { return true; }

// Which algorithm runs: the first row of the operation whose condition holds. A condition has the
// same value in every process of the clique.
struct Algorithm {
  Op op;
  bool (*condition)(CollectiveContext&, Calls);
  void (*run)(CollectiveContext&, Calls);
};
constexpr Algorithm kAlgorithms[] = {
    {Op::kAllReduce, in_one_process, all_reduce_local},
    {Op::kAllReduce, is_small, all_reduce_one_round},
    {Op::kAllReduce, always, all_reduce_two_rounds},
    {Op::kAllGather, in_one_process, all_gather_local},
    {Op::kAllGather, always, all_gather_direct},
    {Op::kReduceScatter, in_one_process, reduce_scatter_local},
    {Op::kReduceScatter, always, reduce_scatter_direct},
    {Op::kAllToAll, in_one_process, all_to_all_local},
    {Op::kAllToAll, all_to_all_can_read, all_to_all_single_copy},
    {Op::kAllToAll, always, all_to_all_direct},
};

}  // namespace

void run_collective(Clique& clique, Calls calls, std::uint32_t sequence) {
  CollectiveContext context(clique, calls, sequence);
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.op == calls[0]->op && algorithm.condition(context, calls))
      return algorithm.run(context, calls);
  throw Error("lockstep: not a collective of the whole group.");
}

std::size_t elements_per_part(const Clique& clique, std::size_t parts, std::size_t width) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = clique.capacity() / parts;
  if (bytes < width)
    throw Error("lockstep: " + clique.describe() + " are too many for one message of " +
                std::to_string(clique.capacity() >> 10) + " KiB.");
  return (bytes < kLine ? bytes : bytes / kLine * kLine) / width;
}

}  // namespace lockstep
