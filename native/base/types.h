// The vocabulary of the engine: element types, reductions, operations, and one rank's call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/futex_wait.h"
#include "base/origin.h"

namespace lockstep {

struct RecordEntry;

enum class DType : std::uint8_t {
  kByte,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF32,
  kF64,
  kC64,
  kC128
};
enum class Reduction : std::uint8_t { kNone, kSum, kProduct, kMin, kMax };
enum class Op : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kPermute };

std::size_t size_of(DType dtype);
const char* name_of(DType dtype);
const char* name_of(Reduction reduction);
const char* name_of(Op op);

// A call's entry in the recorder, which may have been overwritten when its number differs.
struct Record {
  RecordEntry* entry = nullptr;
  std::uint64_t number = 0;
};

// One rank's call. Buffers are XLA's: they stay valid until the rank's call returns.
//
//   operation       count              in                      out
//   all-reduce      elements           [count]                 [count], may be `in`
//   all-gather      elements per rank  [count]                 [ranks][count]
//   reduce-scatter  elements per rank  [ranks][count]          [count]
//   all-to-all      elements per rank  ins[ranks] of [count]   outs[ranks] of [count]
struct Call {
  Op op = Op::kAllReduce;
  DType dtype = DType::kByte;
  Reduction reduction = Reduction::kNone;
  std::size_t count = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<const std::byte*> ins;
  std::vector<std::byte*> outs;
  Origin origin;
  Record record;
  Clock::time_point entered;  // read once: the deadline counts from it, the record shows it

  std::size_t bytes() const { return count * size_of(dtype); }
};

// The part of a call that all ranks must agree on; it travels with the data.
struct Signature {
  Op op;
  DType dtype;
  Reduction reduction;
  std::uint8_t unused = 0;
  std::uint32_t sequence;  // how many collectives this clique has run
  std::uint64_t count;
  Origin origin;

  // Whether both are the same collective, whichever program it belongs to.
  bool same_call(const Signature& other) const {
    return op == other.op && dtype == other.dtype && reduction == other.reduction &&
           sequence == other.sequence && count == other.count;
  }
  bool agrees(const Signature& other) const {
    return same_call(other) && origin.agrees(other.origin);
  }
};
static_assert(sizeof(Signature) == 40);

Signature signature_of(const Call& call, std::uint32_t sequence);
std::string describe(const Signature& signature);
// What may have made two processes call two different collectives.
std::string hint_of(const Signature& one, const Signature& other);

}  // namespace lockstep
