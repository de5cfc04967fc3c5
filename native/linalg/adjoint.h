// The adjoint of a matrix, copied so that the lines of both stay in the cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linalg/rows.h"

namespace lockstep::adjoint {

// How far apart to keep rows of `count` elements, so that they do not all lie in one set of the
// cache: an odd number of lines.
constexpr std::int64_t stride_of(std::int64_t count) { return (count + 15) / 16 * 16 + 8; }

// Calls `put` with each element of `to` (columns x rows) and that of the adjoint of `from`. Of the
// matrix whose rows lie farther apart as many at a time as a cache line has doubles, in whole.
template <typename T, typename Put>
void each(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_stride, T* to,
          std::int64_t to_stride, const Put& put) {
  constexpr std::int64_t kAtOnce = 8;
  const bool by_rows = from_stride > to_stride;
  const std::int64_t count = by_rows ? rows : columns;
  for (std::int64_t first = 0; first < count; first += kAtOnce) {
    const std::int64_t end = std::min(count, first + kAtOnce);
    if (by_rows)
      for (std::int64_t j = 0; j < columns; ++j)
        for (std::int64_t i = first; i < end; ++i)
          put(to[j * to_stride + i], rows::conjugate(from[i * from_stride + j]));
    else
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = first; j < end; ++j)
          put(to[j * to_stride + i], rows::conjugate(from[i * from_stride + j]));
  }
}

template <typename T>
void copy(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_stride, T* to,
          std::int64_t to_stride) {
  each(rows, columns, from, from_stride, to, to_stride, [](T& x, const T& y) { x = y; });
}

// to <- the adjoint of `from`, less `to`.
template <typename T>
void copy_less(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_stride,
               T* to, std::int64_t to_stride) {
  each(rows, columns, from, from_stride, to, to_stride, [](T& x, const T& y) { x = y - x; });
}

}  // namespace lockstep::adjoint
