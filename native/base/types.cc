#include "base/types.h"

namespace lockstep {
namespace {

constexpr const char* kMismatchHint =
    ". All processes must run the same program on the same shapes: look for a loop of another "
    "length, a padded batch, or `if jax.process_index() == 0`.";

constexpr const char* kOtherLine =
    " They look alike, but different lines of the program make them, which --strict compares.";
constexpr const char* kOtherProgram =
    " They look alike but belong to different programs, or to different executions of one: the "
    "processes run them in different orders. LOCKSTEP_CHECK_PROGRAMS=0 lets such calls meet.";

template <typename Value, std::size_t count>
const char* name_in(const char* const (&names)[count], Value value) {
  const auto index = static_cast<std::size_t>(value);
  return index < count ? names[index] : "?";
}

// What tells two calls apart that look alike; nothing for others.
std::string look_alikes(const Signature& one, const Signature& other) {
  if (!one.same_call(other)) return "";
  return one.origin.other_line(other.origin) ? kOtherLine : kOtherProgram;
}

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kByte:
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 8;
    case DType::kC128:
      return 16;
  }
  return 0;
}

const char* name_of(DType dtype) {
  constexpr const char* kNames[] = {"byte", "s8",  "s16", "s32", "s64", "u8",  "u16",
                                    "u32",  "u64", "f32", "f64", "c64", "c128"};
  return name_in(kNames, dtype);
}

const char* name_of(Reduction reduction) {
  constexpr const char* kNames[] = {"", "sum", "product", "min", "max"};
  return name_in(kNames, reduction);
}

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all",
                                    "collective-permute"};
  return name_in(kNames, op);
}

std::string describe(const Signature& signature) {
  std::string text = name_of(signature.op);
  if (signature.reduction != Reduction::kNone)
    text += std::string(" (") + name_of(signature.reduction) + ")";
  return text + " of " + std::to_string(signature.count) + " x " + name_of(signature.dtype) +
         " (collective " + std::to_string(signature.sequence) + ")";
}

Signature signature_of(const Call& call, std::uint32_t sequence) {
  return {call.op, call.dtype, call.reduction, 0, sequence, call.count, call.origin};
}

std::string hint_of(const Signature& one, const Signature& other) {
  return kMismatchHint + look_alikes(one, other);
}

}  // namespace lockstep
