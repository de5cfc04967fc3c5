// All-reduce of one vector among a team, one process of each host. H hosts, N bytes.
//
//   algorithm            messages of a process   bytes it sends       source
//   recursive doubling   log2 H (+ 2)            N log2 H             Thakur, Rabenseifner, Gropp,
//   halving, doubling    2 log2 H                2 N (H - 1) / H        "Optimization of Collective
//   direct               2 (H - 1)               2 N (H - 1) / H        Communication Operations in
//   ring                 2 (H - 1)               2 N (H - 1) / H        MPICH", 2005
//
// Halving with doubling is Rabenseifner's algorithm, for powers of two. The direct algorithm
// exchanges slices with all members at once, so a process waits twice, not H times. Where H is no
// power of two, recursive doubling first adds one of two neighbours to the other one.
//
// Each element is added up by one member, or by all in the same order: the bits are the same
// everywhere and in every run. They depend on the algorithm, so on H and N.
#pragma once

#include <cstddef>

#include "base/types.h"
#include "collectives/between_hosts/exchange.h"

namespace lockstep {

// The ranks of a process that is alone on its host, whose vectors are added up, and which all need
// the result. Their work overlaps the messages: it is done for elements [first, first + count).
class LocalRanks {
 public:
  // Leaves the sum of their inputs in the vector. Called once for each element, before it is sent
  // or added to.
  virtual void add(std::size_t first, std::size_t count) = 0;
  // Copies elements of the vector, which are final, to the other ranks.
  virtual void give(std::size_t first, std::size_t count) = 0;

 protected:
  ~LocalRanks() = default;
};

struct Vector {
  const std::byte* in;
  std::byte* out;  // may be `in`
  std::size_t count;
  DType dtype;
  Reduction reduction;
  LocalRanks* ranks = nullptr;  // then `in` is `out`; null: `in` is complete

  std::size_t width() const { return size_of(dtype); }
};

void recursive_doubling(CollectiveContext& context, const Team& team, const Vector& vector);
void halving_doubling(CollectiveContext& context, const Team& team, const Vector& vector);
void direct_slices(CollectiveContext& context, const Team& team, const Vector& vector);
void ring_slices(CollectiveContext& context, const Team& team, const Vector& vector);

}  // namespace lockstep
