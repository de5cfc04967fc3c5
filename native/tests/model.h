// Collectives beside a straightforward model of each. A rank knows what every other rank sends,
// because inputs are a function of (seed, rank, index): it computes what it must get by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "api/communicator.h"
#include "base/types.h"
#include "harness.h"

namespace lockstep::testing {

// kExact: results do not depend on the order of the arithmetic (integers of all bits, small
// integer-valued floats), so the model decides. kRough: floats of many magnitudes, where only equal
// bits on all ranks and in all runs can be asked for.
enum class Values { kExact, kRough };

struct Case {
  Op op = Op::kAllReduce;
  DType dtype = DType::kF32;
  Reduction reduction = Reduction::kSum;
  std::size_t count = 0;
  std::uint32_t seed = 0;
  bool in_place = false;  // all-reduce only
  Values values = Values::kExact;
};

// Memory with guards on both sides; the payload starts on a cache line.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);

  std::byte* data() { return memory_.data() + start_; }
  std::size_t bytes() const { return bytes_; }
  // Fails when something was written outside.
  void check_guards() const;

 private:
  std::size_t bytes_;
  std::size_t start_;
  std::vector<std::byte> memory_;
};

// Reductions that the type has, for an operation that reduces; {kNone} for the others.
std::vector<Reduction> reductions_of(Op op, DType dtype);
std::vector<DType> all_dtypes();

// The call of a rank for this case, with these buffers; not of an all-to-all.
Call call_of(const Case& what, const void* in, void* out);

// Runs one collective as XLA does and compares the result with the model (kExact). Returns the
// result.
Buffer run_case(Communicator& end, const Case& what);

inline constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll};

// A case of any operation: with the first reduction that the type has.
Case case_of(Op op, DType dtype, std::size_t count, std::uint32_t seed);

// Runs all of `kOps`, each with that reduction.
void run_all(Communicator& end, DType dtype, std::size_t count, std::uint32_t seed);

// A collective-permute as XLA runs it: sends first, then the receive, then the waits; what a rank
// sends to itself, XLA copies. Returns what was received, checked.
struct Edge {
  int source, target;
};
void run_permute(Communicator& end, const std::vector<Edge>& edges, std::size_t bytes,
                 std::uint32_t seed);

// Runs all of `kOps`, and a permute between the first two ranks.
void run_all_and_permute(Communicator& end, std::size_t count);

// This rank's end of the clique of all, when each of them has started.
std::unique_ptr<Communicator> all_started(Rank& rank);

// Each rank sends to the one that is so many further.
std::vector<Edge> ring(int size, int step = 1);

// The bytes that a rank sends in permutes and tests of the mailbox.
Buffer message(std::uint32_t seed, int rank, std::size_t bytes);

}  // namespace lockstep::testing
