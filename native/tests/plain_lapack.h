// What Python hands to the kernels of `lockstep.linalg` in the place of SciPy's BLAS and LAPACK,
// for double alone: plain loops by columns, as in the reference BLAS.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <numeric>

extern "C" void lockstep_use_lapack(void* const*);

namespace lockstep::testing {

inline void plain_gemm(const char* a_op, const char* b_op, const int* m, const int* n, const int* k,
                       const double* alpha, const double* a, const int* a_stride, const double* b,
                       const int* b_stride, const double* beta, double* c, const int* c_stride) {
  const auto at = [](const double* x, char op, int stride, int i, int j) {
    return op == 'N' ? x[i + j * stride] : x[j + i * stride];
  };
  for (int j = 0; j < *n; ++j)
    for (int i = 0; i < *m; ++i) {
      double sum = 0;
      for (int l = 0; l < *k; ++l)
        sum += at(a, *a_op, *a_stride, i, l) * at(b, *b_op, *b_stride, l, j);
      double& out = c[i + j * *c_stride];
      out = (*beta == 0 ? 0 : *beta * out) + *alpha * sum;
    }
}

// The upper triangle, of a matrix that is not transposed.
inline void plain_syrk(const char*, const char*, const int* n, const int* k, const double* alpha,
                       const double* a, const int* a_stride, const double*, double* c,
                       const int* c_stride) {
  for (int j = 0; j < *n; ++j)
    for (int i = 0; i <= j; ++i) {
      double sum = 0;
      for (int l = 0; l < *k; ++l) sum += a[i + l * *a_stride] * a[j + l * *a_stride];
      c[i + j * *c_stride] = *alpha * sum;
    }
}

inline std::atomic<int> factorizations{0};

// Factorizes the upper triangle, by columns.
inline void plain_potrf(const char*, const int* order, double* a, const int* stride, int* info) {
  ++factorizations;
  *info = 0;
  for (int j = 0; j < *order; ++j)
    for (int i = 0; i <= j; ++i) {
      double& x = a[i + j * *stride];
      for (int k = 0; k < i; ++k) x -= a[k + i * *stride] * a[k + j * *stride];
      if (i == j && !(x > 0)) {
        *info = j + 1;
        return;
      }
      x = i == j ? std::sqrt(x) : x / a[i + i * *stride];
    }
}

// An upper triangle: from the right as it is, from the left its adjoint.
inline void plain_trsm(const char* side, const char*, const char*, const char*, const int* m,
                       const int* n, const double*, const double* a, const int* a_stride, double* b,
                       const int* b_stride) {
  for (int j = 0; j < *n; ++j)
    for (int i = 0; i < *m; ++i) {
      const int last = *side == 'R' ? j : i;
      double& x = b[i + j * *b_stride];
      for (int k = 0; k < last; ++k)
        x -= a[k + last * *a_stride] * (*side == 'R' ? b[i + k * *b_stride] : b[k + j * *b_stride]);
      x /= a[last + last * *a_stride];
    }
}

// Partial pivoting, by columns.
inline void plain_getrf(const int* m, const int* n, double* a, const int* stride, int* swaps,
                        int*) {
  ++factorizations;
  const auto at = [&](int i, int j) -> double& { return a[i + j * *stride]; };
  for (int k = 0; k < std::min(*m, *n); ++k) {
    int best = k;
    for (int i = k; i < *m; ++i)
      if (std::abs(at(i, k)) > std::abs(at(best, k))) best = i;
    swaps[k] = best + 1;
    for (int j = 0; j < *n; ++j) std::swap(at(k, j), at(best, j));
    for (int i = k + 1; i < *m; ++i) {
      at(i, k) /= at(k, k);
      for (int j = k + 1; j < *n; ++j) at(i, j) -= at(i, k) * at(k, j);
    }
  }
}

// What bdsqr finds is LAPACK's: here only that it gets both vectors, and memory of its own.
inline void sums_for_bdsqr(const char*, const int* n, const int*, const int*, const int*,
                           double* values, double* right, void*, const int*, void*, const int*,
                           void*, const int*, double* work, int* info) {
  for (int i = 0; i < *n; ++i) values[i] = work[4 * i] = values[i] + (i + 1 < *n ? right[i] : 0);
  *info = 0;
}

// What gbbrd finds is LAPACK's: here only sums, so that all memory is read or written.
inline void sums_for_gbbrd(const char*, const int*, const int* n, const int*, const int*,
                           const int* above, double* band, const int* ld, double* d, double* e,
                           double*, const int*, double*, const int*, double*, const int*,
                           double* work, int* info) {
  for (int j = 0; j < *n; ++j) {
    double* column = band + static_cast<std::ptrdiff_t>(j) * *ld;
    d[j] = std::accumulate(column, column + *ld, 0.0);
    work[2 * j] = work[2 * j + 1] = column[*above];
  }
  for (int j = 0; j + 1 < *n; ++j) e[j] = work[2 * j];
  *info = 0;
}

// The same of hbtrd.
inline void sums_for_hbtrd(const char*, const char*, const int* n, const int* above, double* band,
                           const int* ld, double* d, double* e, double*, const int*, double* work,
                           int* info) {
  for (int j = 0; j < *n; ++j) {
    double* column = band + static_cast<std::ptrdiff_t>(j) * *ld;
    d[j] = std::accumulate(column, column + *ld, 0.0);
    work[j] = column[*above];
  }
  for (int j = 0; j + 1 < *n; ++j) e[j] = work[j];
  *info = 0;
}

inline void sums_for_sterf(const int* n, double* d, double* e, int* info) {
  for (int j = 0; j + 1 < *n; ++j) d[j] += e[j];
  *info = 0;
}

inline void use_plain_lapack() {
  void* functions[26] = {};
  functions[1] = reinterpret_cast<void*>(plain_gemm);
  functions[5] = reinterpret_cast<void*>(plain_syrk);
  functions[9] = reinterpret_cast<void*>(plain_trsm);
  functions[13] = reinterpret_cast<void*>(plain_potrf);
  functions[17] = reinterpret_cast<void*>(plain_getrf);
  functions[20] = reinterpret_cast<void*>(sums_for_bdsqr);
  functions[21] = reinterpret_cast<void*>(sums_for_gbbrd);
  functions[23] = reinterpret_cast<void*>(sums_for_hbtrd);
  functions[25] = reinterpret_cast<void*>(sums_for_sterf);
  lockstep_use_lapack(functions);
}

}  // namespace lockstep::testing
