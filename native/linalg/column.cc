// The sums over the vectors of a panel, in the variants of the processor.
#include "linalg/column.h"

#include <complex>
#include <cstdint>

#include "base/cpu.h"
#include "linalg/rows.h"

#define LOCKSTEP_DEFINE_SUMS(T)                                                                    \
  LOCKSTEP_VARIANTS(add_combination,                                                               \
                    (const T* vectors, std::int64_t stride, std::int64_t count,                    \
                     std::int64_t length, const T* weights, T* y),                                 \
                    (vectors, stride, count, length, weights, y),                                  \
                    (rows::all<T, rows::kCombine>(vectors, stride, count, length, nullptr,         \
                                                  nullptr, weights, y)))                           \
  LOCKSTEP_VARIANTS(                                                                               \
      add_products,                                                                                \
      (const T* vectors, std::int64_t stride, std::int64_t count, std::int64_t length, const T* u, \
       T* products),                                                                               \
      (vectors, stride, count, length, u, products),                                               \
      (rows::all<T, rows::kDots>(vectors, stride, count, length, u, products, nullptr, nullptr)))

namespace lockstep::column {

LOCKSTEP_DEFINE_SUMS(float)
LOCKSTEP_DEFINE_SUMS(double)
LOCKSTEP_DEFINE_SUMS(std::complex<float>)
LOCKSTEP_DEFINE_SUMS(std::complex<double>)

}  // namespace lockstep::column
