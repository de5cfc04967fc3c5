#include "collectives/collectives.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {

void run_collective(Clique& clique, Calls calls, std::uint32_t sequence) {
  Exchange exchange(clique, calls, sequence);
  switch (calls[0]->op) {
    case Op::kAllReduce:
      return all_reduce(exchange, calls);
    case Op::kAllGather:
      return all_gather(exchange, calls);
    case Op::kReduceScatter:
      return reduce_scatter(exchange, calls);
    case Op::kAllToAll:
      return all_to_all(exchange, calls);
    case Op::kPermute:
      break;
  }
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
