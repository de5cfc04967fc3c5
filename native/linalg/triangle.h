// t <- l^-1 t for a lower triangle l, by products with the inverses of small blocks of its
// diagonal: many times the rate of a solver, and as accurate as those blocks are well conditioned.
// The t of x l^-H is the adjoint of x. It has few rows and many columns, by rows: the BLAS, which
// goes by columns, then has the long side first, and packs that one faster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "linalg/blas.h"

namespace lockstep::triangle {

// Columns of a block. Its inverse costs a third of its cube, at the rate of plain loops.
constexpr std::int64_t kBlock = 64;
// Columns of t solved at a time: with a block's rows they stay in the second-level cache.
template <typename T>
constexpr std::int64_t kChunk = 4096 / sizeof(T);

// The inverse of a lower triangle, by rows; zero above the diagonal.
template <typename T>
void invert(const T* l, std::int64_t stride, std::int64_t size, T* inverse) {
  std::fill(inverse, inverse + kBlock * kBlock, T(0));
  for (std::int64_t i = 0; i < size; ++i) {
    T* row = inverse + i * kBlock;
    for (std::int64_t k = 0; k < i; ++k) {
      const T factor = l[i * stride + k];
      const T* other = inverse + k * kBlock;
      for (std::int64_t j = 0; j <= k; ++j) row[j] -= factor * other[j];
    }
    const T pivot = T(1) / l[i * stride + i];
    for (std::int64_t j = 0; j < i; ++j) row[j] *= pivot;
    row[i] = pivot;
  }
}

// The inverses of the blocks on the diagonal of l (width x width), one after another.
template <typename T>
std::vector<T> inverses_of(const T* l, std::int64_t width) {
  std::vector<T> found;
  for (std::int64_t at = 0; at < width; at += kBlock) {
    found.resize(found.size() + kBlock * kBlock);
    invert(l + at * width + at, width, std::min(kBlock, width - at), &found[at * kBlock]);
  }
  return found;
}

// The inverses of all blocks on the diagonal of l (width x width), and space for one product.
template <typename T>
class Solver {
 public:
  Solver(const T* l, std::int64_t width)
      : l_(l), width_(width), inverses_(inverses_of(l, width)), product_(kChunk<T> * kBlock) {}

  // t (width x columns, at most `kChunk<T>`); its rows are `stride` apart.
  void solve(T* t, std::int64_t stride, std::int64_t columns) {
    solve(t, stride, columns, 0, width_);
  }

 private:
  // Rows `first` to `end`, which lack nothing but their own triangle.
  void solve(T* t, std::int64_t stride, std::int64_t columns, std::int64_t first,
             std::int64_t end) {
    const std::int64_t size = end - first;
    T* own = t + first * stride;
    if (size <= kBlock) {
      blas::gemm<T>(size, columns, size, T(1), {&inverses_[first * kBlock], kBlock, false},
                    {own, stride, false}, T(0), product_.data(), kChunk<T>);
      for (std::int64_t i = 0; i < size; ++i)
        std::copy_n(&product_[i * kChunk<T>], columns, own + i * stride);
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
  std::vector<T> inverses_, product_;
};

}  // namespace lockstep::triangle
