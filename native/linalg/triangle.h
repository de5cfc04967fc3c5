// t <- l^-1 t for a lower triangle l, by products, and a solver for small blocks of its diagonal:
// at many times the rate of a solver for all of it. Where x l^-H is wanted, t is the adjoint of x.
// It has few rows and many columns, by rows: the BLAS, which goes by columns, then has the long
// side first, and packs that one faster.
#pragma once

#include <cstdint>

#include "linalg/blas.h"

namespace lockstep::triangle {

// Columns of a block.
constexpr std::int64_t kBlock = 64;
// Columns of t solved at a time: with a block's rows they stay in the second-level cache.
template <typename T>
constexpr std::int64_t kChunk = 4096 / sizeof(T);

// Solves with l (width x width).
template <typename T>
class Solver {
 public:
  Solver(const T* l, std::int64_t width) : l_(l), width_(width) {}

  // t (width x columns); its rows are `stride` apart.
  void solve(T* t, std::int64_t stride, std::int64_t columns) const {
    solve(t, stride, columns, 0, width_);
  }

 private:
  // Rows `first` to `end`, which lack nothing but their own triangle.
  void solve(T* t, std::int64_t stride, std::int64_t columns, std::int64_t first,
             std::int64_t end) const {
    const std::int64_t size = end - first;
    T* own = t + first * stride;
    if (size <= kBlock) {
      if (size > 0)
        blas::trsm<T>("R", "N", columns, size, l_ + first * width_ + first, width_, own, stride);
      return;
    }
    const std::int64_t middle = first + (size / kBlock + 1) / 2 * kBlock;
    solve(t, stride, columns, first, middle);
    blas::gemm<T>(end - middle, columns, middle - first, T(-1),
                  {l_ + middle * width_ + first, width_, false}, {own, stride, false}, T(1),
                  t + middle * stride, stride);
    solve(t, stride, columns, middle, end);
  }

  const T* l_;
  std::int64_t width_;
};

}  // namespace lockstep::triangle
