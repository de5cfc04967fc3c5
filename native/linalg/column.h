// A column of the panel of a two-sided reduction: where it lies, and what is done to vectors of all
// slots because of the columns before it.
//
// A vector has an element for every slot, (P, R); a panel has `width` = P T of them. Column c of
// superstep s is the slot (c / T, s T + c % T). Slots of earlier supersteps count as zero.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "linalg/ffi.h"
#include "linalg/rows.h"

namespace lockstep::column {

struct Place {
  std::int64_t devices, rows, tile, step, column;

  std::int64_t size() const { return devices * rows; }
  std::int64_t width() const { return devices * tile; }
  std::int64_t top() const { return step * tile; }
  // The slot that is eliminated `later` columns after this one; size() if there is none.
  std::int64_t slot(std::int64_t later) const {
    const std::int64_t c = column + later, s = step + c / width(), in = c % width();
    return (s + 1) * tile > rows ? size() : in / tile * rows + s * tile + in % tile;
  }
  // The first local row of device q that is eliminated after this column.
  std::int64_t after(std::int64_t q) const {
    return top() + std::clamp<std::int64_t>(column + 1 - q * tile, 0, tile);
  }

  // Calls `visit` with each slot below `top`.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (std::int64_t q = 0; q < devices; ++q)
      for (std::int64_t j = q * rows + top(); j < (q + 1) * rows; ++j) visit(j);
  }

  // Zeros in x where a slot is eliminated with this column or before it.
  template <typename T>
  void clear_done(T* x) const {
    for (std::int64_t q = 0; q < devices; ++q)
      std::fill(x + q * rows, x + q * rows + after(q), T(0));
  }
};

// Sums over vectors that lie `stride` apart, compiled once for all kernels (`column.cc`): y +=
// weights[k] vectors[k], and products[k] += <vectors[k], u>, for `length` elements.
#define LOCKSTEP_DECLARE_SUMS(T)                                                  \
  void add_combination(const T* vectors, std::int64_t stride, std::int64_t count, \
                       std::int64_t length, const T* weights, T* y);              \
  void add_products(const T* vectors, std::int64_t stride, std::int64_t count,    \
                    std::int64_t length, const T* u, T* products);
LOCKSTEP_DECLARE_SUMS(float)
LOCKSTEP_DECLARE_SUMS(double)
LOCKSTEP_DECLARE_SUMS(std::complex<float>)
LOCKSTEP_DECLARE_SUMS(std::complex<double>)
#undef LOCKSTEP_DECLARE_SUMS

// y -= sum of weights[k] vectors[k], below `top`. `vectors` is (count, P, R).
template <typename T>
void leave(const Place& at, const T* vectors, std::vector<T> weights, T* y) {
  for (T& weight : weights) weight = -weight;
  for (std::int64_t q = 0; q < at.devices; ++q) {
    const std::int64_t first = q * at.rows + at.top();
    add_combination(vectors + first, at.size(), static_cast<std::int64_t>(weights.size()),
                    at.rows - at.top(), weights.data(), y + first);
  }
}

// The products of the conjugates of `count` vectors with u, over all slots below `top`.
template <typename T>
std::vector<T> dots(const Place& at, const T* vectors, std::int64_t count, const T* u) {
  std::vector<T> products(static_cast<std::size_t>(count));
  for (std::int64_t q = 0; q < at.devices; ++q) {
    const std::int64_t first = q * at.rows + at.top();
    add_products(vectors + first, at.size(), count, at.rows - at.top(), u + first, products.data());
  }
  return products;
}

// The conjugates of the elements of `count` vectors at a slot.
template <typename T>
std::vector<T> elements(const Place& at, const T* vectors, std::int64_t count, std::int64_t slot) {
  std::vector<T> found(static_cast<std::size_t>(count));
  for (std::int64_t k = 0; k < count; ++k)
    found[static_cast<std::size_t>(k)] = rows::conjugate(vectors[k * at.size() + slot]);
  return found;
}

// The sum over all slots below `top`: of conj(x) y.
template <typename T>
T dot(const Place& at, const T* x, const T* y) {
  return dots(at, x, 1, y).front();
}

template <typename T>
struct Scalars {
  T beta, tau;
};

// LAPACK's larfg: in place of x, which is zero but at slots after `first`, and at `first`, the
// vector u that is 1 there, with (I - tau u u^H)^H x = beta e. `first` is size() where there is
// none.
template <typename T>
Scalars<T> larfg(const Place& at, std::int64_t first, T* u) {
  using R = rows::Real<T>;
  const T alpha = first < at.size() ? u[first] : T(0);
  if (first < at.size()) u[first] = 0;
  // Scaled, so that squares of the smallest numbers are not lost.
  R largest = std::max(std::abs(std::real(alpha)), std::abs(std::imag(alpha)));
  at.each([&](std::int64_t j) {
    largest = std::max({largest, std::abs(std::real(u[j])), std::abs(std::imag(u[j]))});
  });
  const R inverse = largest > 0 && std::isfinite(1 / largest) ? 1 / largest : R(1);
  const T scaled = alpha * inverse;
  at.each([&](std::int64_t j) { u[j] *= inverse; });
  const R squares = std::real(dot(at, u, u));
  if (first == at.size() || (squares == 0 && std::imag(alpha) == 0)) {
    std::fill(u, u + at.size(), T(0));
    return {alpha, 0};
  }
  const R size = std::sqrt(squares + std::norm(scaled));
  const R beta = std::real(scaled) > 0 ? -size : size;
  const T factor = T(1) / (scaled - beta);
  at.each([&](std::int64_t j) { u[j] = rows::times(u[j], factor); });
  u[first] = 1;
  return {beta / inverse, (beta - scaled) / beta};
}

// Sets `place` to the first column of superstep `step` of s32 (tile, step ...), which may be one
// after the last, for panels of `width` vectors (P, R); false if they have no such superstep.
inline bool read_step(const ffi::Buffer& vectors, const std::int32_t* where, std::int64_t width,
                      Place& place) {
  if (vectors.rank != 3 || !ffi::is_number(vectors.type)) return false;
  place = {vectors.dims[1], vectors.dims[2], where[0], where[1], 0};
  return place.tile >= 1 && place.rows % place.tile == 0 && place.step >= 0 &&
         place.top() <= place.rows && place.width() == width;
}

// Sets `place` to the column of s32 (tile, step, column ...), of a superstep that there is; false
// if it has none.
inline bool read(const ffi::Buffer& vectors, const std::int32_t* where, std::int64_t width,
                 Place& place) {
  if (!read_step(vectors, where, width, place) || place.top() == place.rows) return false;
  place.column = where[2];
  return place.column >= 0 && place.column < width;
}

}  // namespace lockstep::column
