// x <- x l^-H for a lower triangle l, by products with the inverses of small blocks of its
// diagonal: many times the rate of a solver, and as accurate as those blocks are well conditioned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "linalg/blas.h"

namespace lockstep::triangle {

// Columns of a block. Its inverse costs a third of its cube, at the rate of plain loops.
constexpr std::int64_t kBlock = 64;
// Rows solved at a time: with a block's columns they stay in the second-level cache.
constexpr std::int64_t kChunk = 256;

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

// The inverses of all blocks on the diagonal of l (width x width), and space for one product.
template <typename T>
struct Solver {
  const T* l;
  std::int64_t width;
  std::vector<T> inverses, product;

  Solver(const T* factor, std::int64_t size) : l(factor), width(size), product(kChunk * kBlock) {
    for (std::int64_t at = 0; at < width; at += kBlock) {
      inverses.resize(inverses.size() + kBlock * kBlock);
      invert(l + at * width + at, width, std::min(kBlock, width - at), &inverses[at * kBlock]);
    }
  }

  // Columns `first` to `end` of x (rows x width), which lack nothing but their own triangle.
  void solve(T* x, std::int64_t rows, std::int64_t first, std::int64_t end) {
    const std::int64_t size = end - first;
    if (size <= kBlock) {
      blas::gemm<T>(rows, size, size, T(1), {x + first, width, false},
                    {&inverses[first * kBlock], kBlock, true}, T(0), product.data(), kBlock);
      for (std::int64_t i = 0; i < rows; ++i)
        std::copy_n(&product[i * kBlock], size, x + i * width + first);
      return;
    }
    const std::int64_t middle = first + (size / kBlock + 1) / 2 * kBlock;
    solve(x, rows, first, middle);
    blas::gemm<T>(rows, end - middle, middle - first, T(-1), {x + first, width, false},
                  {l + middle * width + first, width, true}, T(1), x + middle, width);
    solve(x, rows, middle, end);
  }
};

}  // namespace lockstep::triangle
