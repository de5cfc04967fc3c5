// What Python hands over of a BLAS and LAPACK: SciPy's, which jaxlib's own calls use too.
#pragma once

#include <complex>
#include <cstdint>
#include <type_traits>

#include "linalg/ffi.h"
#include "linalg/turn.h"

namespace lockstep::blas {

using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const void*,
                      const void*, const int*, const void*, const int*, const void*, void*,
                      const int*);
// For real numbers it is BLAS's syrk, which takes the same arguments.
using Herk = void (*)(const char*, const char*, const int*, const int*, const void*, const void*,
                      const int*, const void*, void*, const int*);
using Trsm = void (*)(const char*, const char*, const char*, const char*, const int*, const int*,
                      const void*, const void*, const int*, void*, const int*);
using Potrf = void (*)(const char*, const int*, void*, const int*, int*);
using Getrf = void (*)(const int*, const int*, void*, const int*, int*, int*);
using Bdsqr = void (*)(const char*, const int*, const int*, const int*, const int*, void*, void*,
                       void*, const int*, void*, const int*, void*, const int*, void*, int*);
using RealGbbrd = void (*)(const char*, const int*, const int*, const int*, const int*, const int*,
                           void*, const int*, void*, void*, void*, const int*, void*, const int*,
                           void*, const int*, void*, int*);
using ComplexGbbrd = void (*)(const char*, const int*, const int*, const int*, const int*,
                              const int*, void*, const int*, void*, void*, void*, const int*, void*,
                              const int*, void*, const int*, void*, void*, int*);
// For real numbers it is LAPACK's sbtrd, which takes the same arguments.
using Hbtrd = void (*)(const char*, const char*, const int*, const int*, void*, const int*, void*,
                       void*, void*, const int*, void*, int*);
using Sterf = void (*)(const int*, void*, void*, int*);

// The routines for one type; null until `lockstep_use_lapack`.
struct Routines {
  Gemm gemm;
  Herk herk;
  Trsm trsm;
  Potrf potrf;
  Getrf getrf;
};

// The routines of float, double and their complex types.
extern Routines table[4];

// The routines that find singular values and eigenvalues. They apply n^2 rotations one after
// another, whose errors add up in 32 bits: so they are for double and its complex type alone.
struct OfValues {
  Bdsqr dbdsqr;
  RealGbbrd dgbbrd;
  ComplexGbbrd zgbbrd;
  Hbtrd dsbtrd, zhbtrd;
  Sterf dsterf;
};
extern OfValues values;

template <typename T>
const Routines& of() {
  if constexpr (std::is_same_v<T, float>) return table[0];
  if constexpr (std::is_same_v<T, double>) return table[1];
  if constexpr (std::is_same_v<T, std::complex<float>>) return table[2];
  if constexpr (std::is_same_v<T, std::complex<double>>) return table[3];
}

// A matrix by rows, which lie `stride` elements apart; adjoint: its conjugate transpose is meant.
template <typename T>
struct Operand {
  const T* data;
  std::int64_t stride;
  bool adjoint;
};

// c (m x n) = beta c + alpha a b, all by rows. BLAS goes by columns, and sees the transposes.
template <typename T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const Operand<T>& a,
          const Operand<T>& b, T beta, T* c, std::int64_t c_stride) {
  const int sizes[] = {static_cast<int>(n), static_cast<int>(m), static_cast<int>(k)};
  const int strides[] = {static_cast<int>(b.stride), static_cast<int>(a.stride),
                         static_cast<int>(c_stride)};
  const char *first = b.adjoint ? "C" : "N", *second = a.adjoint ? "C" : "N";
  of<T>().gemm(first, second, &sizes[0], &sizes[1], &sizes[2], &alpha, b.data, &strides[0], a.data,
               &strides[1], &beta, c, &strides[2]);
}

// BLAS's trsm with a lower triangle l by rows, which it sees as an upper one. It goes by columns,
// so for x by rows ("L", "C") is x l^-H, ("R", "N") l^-1 x, and ("R", "C") l^-H x.
template <typename T>
void trsm(const char* side, const char* op, std::int64_t columns, std::int64_t rows, const T* l,
          std::int64_t l_stride, T* x, std::int64_t x_stride) {
  const int sizes[] = {static_cast<int>(columns), static_cast<int>(rows)};
  const int strides[] = {static_cast<int>(l_stride), static_cast<int>(x_stride)};
  const T one(1);
  of<T>().trsm(side, "U", op, "N", &sizes[0], &sizes[1], &one, l, &strides[0], x, &strides[1]);
}

// Calls `run` with a zero of the type that arrays of `type` hold.
template <typename Run>
ffi::Error* for_type(ffi::Type type, const ffi::Frame& frame, const Run& run) {
  const auto with = [&]<typename T>(T zero) -> ffi::Error* {
    if (of<T>().gemm == nullptr) return ffi::error(frame, "lockstep: a kernel was given no BLAS.");
    return ffi::run(frame, [&] {
      const Turn turn;
      run(zero);
    });
  };
  if (type == ffi::Type::kF32) return with(float());
  if (type == ffi::Type::kF64) return with(double());
  if (type == ffi::Type::kC64) return with(std::complex<float>());
  if (type == ffi::Type::kC128) return with(std::complex<double>());
  return ffi::error(frame, "lockstep: a kernel wants numbers of f32, f64, c64 or c128.");
}

}  // namespace lockstep::blas
