// Integers wrap, as XLA's do: signed types are added and multiplied as unsigned. Min and max pass
// NaN on from either side, as jnp.minimum does. Compiled with -ffp-contract=off: a fused
// multiply-add in the complex product would make the bits depend on the processor.
#include "collectives/reduce.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <type_traits>

#include "base/cpu.h"
#include "base/error.h"

namespace lockstep {
namespace {

// Inputs of one block stay in the first-level cache while it is combined with the next input.
constexpr std::size_t kBlockBytes = 8192;

template <typename T>
struct Sum {
  static T apply(T a, T b) { return a + b; }
};
template <typename T>
struct Product {
  static T apply(T a, T b) {
    // Narrow types are promoted to int, which the product of two 16-bit numbers overflows.
    if constexpr (std::is_integral_v<T>) return static_cast<T>(1U * a * b);
    return a * b;
  }
};
template <typename T>
struct Min {
  static T apply(T a, T b) { return (b < a || b != b) ? b : a; }
};
template <typename T>
struct Max {
  static T apply(T a, T b) { return (b > a || b != b) ? b : a; }
};
template <typename R>
struct Product<std::complex<R>> {
  // Written out: operator* of std::complex calls a slow routine that repairs infinities.
  static std::complex<R> apply(std::complex<R> a, std::complex<R> b) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }
};

using Kernel = void (*)(std::byte*, const std::byte*, const std::byte*, std::size_t);

template <typename T, template <typename> typename Op>
LOCKSTEP_INLINE void combine(std::byte* out, const std::byte* a, const std::byte* b,
                             std::size_t n) {
  auto* to = reinterpret_cast<T*>(out);
  const auto* x = reinterpret_cast<const T*>(a);
  const auto* y = reinterpret_cast<const T*>(b);
  for (std::size_t i = 0; i < n; ++i) to[i] = Op<T>::apply(x[i], y[i]);
}

#define LOCKSTEP_KERNEL(NAME, T, OP)                                                  \
  LOCKSTEP_THREE_VARIANTS(                                                            \
      NAME, (std::byte * out, const std::byte* a, const std::byte* b, std::size_t n), \
      (out, a, b, n), (combine<T, OP>(out, a, b, n)))

#define LOCKSTEP_RING(SUFFIX, T)        \
  LOCKSTEP_KERNEL(sum_##SUFFIX, T, Sum) \
  LOCKSTEP_KERNEL(product_##SUFFIX, T, Product)
#define LOCKSTEP_ORDER(SUFFIX, T)       \
  LOCKSTEP_KERNEL(min_##SUFFIX, T, Min) \
  LOCKSTEP_KERNEL(max_##SUFFIX, T, Max)

// Two's complement: one ring per width serves signed and unsigned.
LOCKSTEP_RING(8, std::uint8_t)
LOCKSTEP_RING(16, std::uint16_t)
LOCKSTEP_RING(32, std::uint32_t)
LOCKSTEP_RING(64, std::uint64_t)
LOCKSTEP_RING(f32, float)
LOCKSTEP_RING(f64, double)
LOCKSTEP_RING(c64, std::complex<float>)
LOCKSTEP_RING(c128, std::complex<double>)
LOCKSTEP_ORDER(i8, std::int8_t)
LOCKSTEP_ORDER(i16, std::int16_t)
LOCKSTEP_ORDER(i32, std::int32_t)
LOCKSTEP_ORDER(i64, std::int64_t)
LOCKSTEP_ORDER(u8, std::uint8_t)
LOCKSTEP_ORDER(u16, std::uint16_t)
LOCKSTEP_ORDER(u32, std::uint32_t)
LOCKSTEP_ORDER(u64, std::uint64_t)
LOCKSTEP_ORDER(f32, float)
LOCKSTEP_ORDER(f64, double)

// Columns follow Reduction: sum, product, min, max.
Kernel kernel_for(DType dtype, Reduction reduction) {
  static constexpr Kernel kTable[][4] = {
      {nullptr, nullptr, nullptr, nullptr},       {sum_8, product_8, min_i8, max_i8},
      {sum_16, product_16, min_i16, max_i16},     {sum_32, product_32, min_i32, max_i32},
      {sum_64, product_64, min_i64, max_i64},     {sum_8, product_8, min_u8, max_u8},
      {sum_16, product_16, min_u16, max_u16},     {sum_32, product_32, min_u32, max_u32},
      {sum_64, product_64, min_u64, max_u64},     {sum_f32, product_f32, min_f32, max_f32},
      {sum_f64, product_f64, min_f64, max_f64},   {sum_c64, product_c64, nullptr, nullptr},
      {sum_c128, product_c128, nullptr, nullptr},
  };
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(reduction);
  if (row >= std::size(kTable) || column < 1 || column > 4) return nullptr;
  return kTable[row][column - 1];
}

}  // namespace

void check_reduction(DType dtype, Reduction reduction) {
  if (kernel_for(dtype, reduction) == nullptr)
    throw Error(std::string("lockstep: no reduction ") + name_of(reduction) + " for " +
                name_of(dtype) + ".");
}

void reduce(std::byte* out, std::span<const std::byte* const> in, std::size_t count, DType dtype,
            Reduction reduction, std::size_t first) {
  const std::size_t width = size_of(dtype);
  const auto from = [&](std::size_t i, std::size_t at) { return in[i] + (first + at) * width; };
  if (in.size() == 1) {
    if (out != from(0, 0)) std::memcpy(out, from(0, 0), count * width);
    return;
  }
  check_reduction(dtype, reduction);
  const Kernel kernel = kernel_for(dtype, reduction);
  const std::size_t block = kBlockBytes / width;
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t n = std::min(block, count - at);
    std::byte* to = out + at * width;
    kernel(to, from(0, at), from(1, at), n);
    for (std::size_t i = 2; i < in.size(); ++i) kernel(to, to, from(i, at), n);
  }
}

}  // namespace lockstep
