// Sums over rows of a matrix that lie some way apart, in vectors of the processor: inner products
// with a vector, combinations of the rows, or both in one pass over them.
//
// Complex numbers are vectors of their parts. With a = (re, im, re, im ...), "crossed" means that
// the parts of one factor have changed places; the signs come in at the end or in the factor.
#pragma once

#include <complex>
#include <cstdint>
#include <type_traits>

#include "base/cpu.h"

namespace lockstep::rows {

constexpr std::int64_t kVectorBytes = 32;

template <typename R>
struct Lanes {
  typedef R Vector __attribute__((vector_size(kVectorBytes), aligned(alignof(R)), may_alias));
  static constexpr std::int64_t kCount = kVectorBytes / sizeof(R);
};

template <typename R>
using Vector = typename Lanes<R>::Vector;

template <typename T>
constexpr bool kComplex = !std::is_floating_point_v<T>;

// The real type of T.
template <typename T>
using Real = typename std::conditional_t<kComplex<T>, T, std::complex<T>>::value_type;

template <typename R>
LOCKSTEP_INLINE void swap_parts(Vector<R>& x) {
  if constexpr (sizeof(R) == 8) {
    x = __builtin_shufflevector(x, x, 1, 0, 3, 2);
  } else {
    x = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
  }
}

// 1, -1, 1, -1 ...
template <typename R>
LOCKSTEP_INLINE const Vector<R>& alternating() {
  if constexpr (sizeof(R) == 8) {
    static constexpr Vector<R> kSigns{1, -1, 1, -1};
    return kSigns;
  } else {
    static constexpr Vector<R> kSigns{1, -1, 1, -1, 1, -1, 1, -1};
    return kSigns;
  }
}

// The sum of the even lanes, plus `odd` times the sum of the others.
template <typename R>
LOCKSTEP_INLINE R sum(const Vector<R>& x, R odd) {
  R even = 0, rest = 0;
  for (std::int64_t i = 0; i < Lanes<R>::kCount; i += 2) even += x[i], rest += x[i + 1];
  return even + odd * rest;
}

template <typename T>
LOCKSTEP_INLINE T times(T a, T b) {
  if constexpr (kComplex<T>) {
    // Written out: operator* of std::complex calls a slow routine that repairs infinities.
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else {
    return a * b;
  }
}

template <typename T>
LOCKSTEP_INLINE T conjugate(T a) {
  if constexpr (kComplex<T>) {
    return std::conj(a);
  } else {
    return a;
  }
}

// What is done to an element a of row r at column j: sums[r] += a v[j], or += conj(a) v[j];
// y[j] += a x[r], or += conj(a) x[r].
struct Pass {
  bool sums, conjugate_in_sums, combine, conjugate_in_combine;
};
constexpr Pass kDots{true, true, false, false};
constexpr Pass kCombine{false, false, true, false};
constexpr Pass kHermitian{true, false, true, true};

template <typename T, Pass kPass, std::int64_t kCount>
LOCKSTEP_INLINE void pass(const T* a, std::int64_t stride, std::int64_t columns, const T* v,
                          T* sums, const T* x, T* y) {
  using R = Real<T>;
  constexpr std::int64_t kWide = kVectorBytes / static_cast<std::int64_t>(sizeof(T));
  const Vector<R> zero{};
  Vector<R> straight[kCount], crossed[kCount], real[kCount], imaginary[kCount];
  for (std::int64_t r = 0; r < kCount; ++r) {
    straight[r] = crossed[r] = zero;
    if constexpr (kPass.combine && kComplex<T>) {
      // a x = (ar xr - ai xi, ai xr + ar xi); conj(a) x = (ar xr + ai xi, -ai xr + ar xi).
      const Vector<R> signs = alternating<R>();
      const Vector<R> ones = zero + R(1);
      real[r] = (kPass.conjugate_in_combine ? signs : ones) * x[r].real();
      imaginary[r] = (kPass.conjugate_in_combine ? ones : -signs) * x[r].imag();
    } else if constexpr (kPass.combine) {
      real[r] = zero + x[r];
    }
  }
  std::int64_t j = 0;
  for (; j + kWide <= columns; j += kWide) {
    Vector<R> vj = zero, turned = zero, yj = zero;
    if constexpr (kPass.sums) {
      turned = vj = *reinterpret_cast<const Vector<R>*>(v + j);
      if constexpr (kComplex<T>) swap_parts<R>(turned);
    }
    if constexpr (kPass.combine) yj = *reinterpret_cast<const Vector<R>*>(y + j);
    for (std::int64_t r = 0; r < kCount; ++r) {
      auto arj = *reinterpret_cast<const Vector<R>*>(a + r * stride + j);
      if constexpr (kPass.sums) straight[r] += arj * vj;
      if constexpr (kPass.sums && kComplex<T>) crossed[r] += arj * turned;
      if constexpr (kPass.combine) yj += arj * real[r];
      if constexpr (kPass.combine && kComplex<T>) {
        swap_parts<R>(arj);
        yj += arj * imaginary[r];
      }
    }
    if constexpr (kPass.combine) *reinterpret_cast<Vector<R>*>(y + j) = yj;
  }
  for (std::int64_t r = 0; r < kCount; ++r) {
    if constexpr (kPass.sums && kComplex<T>) {
      // a v = (ar vr - ai vi, ar vi + ai vr); conj(a) v = (ar vr + ai vi, ar vi - ai vr).
      constexpr R kSign = kPass.conjugate_in_sums ? 1 : -1;
      sums[r] += T{sum<R>(straight[r], kSign), sum<R>(crossed[r], -kSign)};
    } else if constexpr (kPass.sums) {
      sums[r] += sum<R>(straight[r], 1);
    }
    for (std::int64_t k = j; k < columns; ++k) {
      const T ark = a[r * stride + k];
      if constexpr (kPass.sums) {
        sums[r] += times(kPass.conjugate_in_sums ? conjugate(ark) : ark, v[k]);
      }
      if constexpr (kPass.combine) {
        y[k] += times(kPass.conjugate_in_combine ? conjugate(ark) : ark, x[r]);
      }
    }
  }
}

// `count` rows of `columns` elements, `stride` elements apart. What the job leaves out may be null.
template <typename T, Pass kPass>
LOCKSTEP_INLINE void all(const T* a, std::int64_t stride, std::int64_t count, std::int64_t columns,
                         const T* v, T* sums, const T* x, T* y) {
  constexpr std::int64_t kTogether = 4;  // rows that share one pass over v and y
  std::int64_t r = 0;
  while (r < count) {
    T* const sums_r = kPass.sums ? sums + r : nullptr;
    const T* const x_r = kPass.combine ? x + r : nullptr;
    if (r + kTogether <= count) {
      pass<T, kPass, kTogether>(a + r * stride, stride, columns, v, sums_r, x_r, y);
      r += kTogether;
    } else {
      pass<T, kPass, 1>(a + r * stride, stride, columns, v, sums_r, x_r, y);
      r += 1;
    }
  }
}

}  // namespace lockstep::rows
