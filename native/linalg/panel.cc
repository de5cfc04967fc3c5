// The two halves of a column of the reduction to tridiagonal form, around the product with the
// trailing matrix (`lockstep/linalg/_tridiagonalize.py`): the reflector of the column, and from the
// product the vector w, with which the trailing matrix becomes a - v^T w^* - w^T v^*.
//
// A vector has an element for every slot, (P, R); a panel has `width` = P T of them. Column c of
// superstep s is the slot (c / T, s T + c % T). Slots of earlier supersteps count as zero, and so
// do the rows of v and w from row c on, whatever is there.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "linalg/ffi.h"
#include "linalg/rows.h"
#include "linalg/types.h"

namespace lockstep {
namespace {

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
};

template <typename T>
using Vectors = const T*;  // (width, P, R)

// y += sum over the panel's columns k before this one of weights[k] vectors[k], below `top`.
template <typename T>
LOCKSTEP_INLINE void combine(const Place& at, Vectors<T> vectors, const T* weights, T* y) {
  for (std::int64_t q = 0; q < at.devices; ++q) {
    const std::int64_t first = q * at.rows + at.top();
    rows::all<T, rows::kCombine>(vectors + first, at.size(), at.column, at.rows - at.top(), nullptr,
                                 nullptr, weights, y + first);
  }
}

template <typename T>
LOCKSTEP_INLINE void dots(const Place& at, Vectors<T> vectors, const T* u, T* products) {
  for (std::int64_t q = 0; q < at.devices; ++q) {
    const std::int64_t first = q * at.rows + at.top();
    rows::all<T, rows::kDots>(vectors + first, at.size(), at.column, at.rows - at.top(), u + first,
                              products, nullptr, nullptr);
  }
}

// The sum over all slots below `top`: of conj(x) y.
template <typename T>
LOCKSTEP_INLINE T dot(const Place& at, const T* x, const T* y) {
  T total = 0;
  for (std::int64_t q = 0; q < at.devices; ++q) {
    const std::int64_t first = q * at.rows + at.top();
    rows::all<T, rows::kDots>(x + first, 0, 1, at.rows - at.top(), y + first, &total, nullptr,
                              nullptr);
  }
  return total;
}

// LAPACK's larfg on the column after the panel's earlier reflectors: u is the reflector, scalars
// are the diagonal, beta and tau.
template <typename T>
LOCKSTEP_INLINE void reflector(const ffi::Frame& frame, const Place& at) {
  using R = rows::Real<T>;
  const auto* panel = frame.arguments[0].as<const T>();
  const auto* v = frame.arguments[1].as<const T>();
  const auto* w = frame.arguments[2].as<const T>();
  auto* u = frame.results[0].as<T>();
  auto* scalars = frame.results[1].as<T>();

  const std::int64_t here = at.slot(0), next = at.slot(1);
  std::memcpy(static_cast<void*>(u), panel + at.column * at.size(),
              static_cast<std::size_t>(at.size()) * sizeof(T));
  std::vector<T> of_v(static_cast<std::size_t>(at.column)), of_w(of_v.size());
  for (std::size_t k = 0; k < of_v.size(); ++k) {
    const std::int64_t row = static_cast<std::int64_t>(k) * at.size() + here;
    of_v[k] = -rows::conjugate(v[row]);
    of_w[k] = -rows::conjugate(w[row]);
  }
  combine(at, v, of_w.data(), u);
  combine(at, w, of_v.data(), u);

  scalars[0] = std::real(u[here]);
  const T alpha = next < at.size() ? u[next] : T(0);
  for (std::int64_t q = 0; q < at.devices; ++q) {
    std::fill(u + q * at.rows, u + q * at.rows + at.after(q), T(0));
  }
  if (next < at.size()) u[next] = 0;
  // Scaled, so that squares of the smallest numbers are not lost.
  R largest = std::max(std::abs(std::real(alpha)), std::abs(std::imag(alpha)));
  for (std::int64_t q = 0; q < at.devices; ++q) {
    for (std::int64_t j = q * at.rows + at.top(); j < (q + 1) * at.rows; ++j) {
      largest = std::max({largest, std::abs(std::real(u[j])), std::abs(std::imag(u[j]))});
    }
  }
  const R inverse = largest > 0 && std::isfinite(1 / largest) ? 1 / largest : R(1);
  const T scaled = alpha * inverse;
  R squares = 0;
  for (std::int64_t q = 0; q < at.devices; ++q) {
    for (std::int64_t j = q * at.rows + at.top(); j < (q + 1) * at.rows; ++j) {
      u[j] *= inverse;
    }
  }
  squares = std::real(dot(at, u, u));
  if (squares == 0 && std::imag(alpha) == 0) {
    std::fill(u, u + at.size(), T(0));
    scalars[1] = alpha;
    scalars[2] = 0;
    return;
  }
  const R size = std::sqrt(squares + std::norm(scaled));
  const R beta = std::real(scaled) > 0 ? -size : size;
  scalars[1] = beta / inverse;
  scalars[2] = (beta - scaled) / beta;
  const T factor = T(1) / (scaled - beta);
  for (std::int64_t q = 0; q < at.devices; ++q) {
    for (std::int64_t j = q * at.rows + at.top(); j < (q + 1) * at.rows; ++j) {
      u[j] = rows::times(u[j], factor);
    }
  }
  u[next] = 1;
}

// From y = a u, where a is the trailing matrix before the panel.
template <typename T>
LOCKSTEP_INLINE void correct(const ffi::Frame& frame, const Place& at) {
  const auto* y = frame.arguments[0].as<const T>();
  const auto* u = frame.arguments[1].as<const T>();
  const auto* v = frame.arguments[2].as<const T>();
  const auto* w = frame.arguments[3].as<const T>();
  const T tau = *frame.arguments[4].as<const T>();
  auto* out = frame.results[0].as<T>();

  std::memcpy(static_cast<void*>(out), y, static_cast<std::size_t>(at.size()) * sizeof(T));
  std::vector<T> of_v(static_cast<std::size_t>(at.column)), of_w(of_v.size());
  dots(at, v, u, of_v.data());
  dots(at, w, u, of_w.data());
  for (std::size_t k = 0; k < of_v.size(); ++k) of_v[k] = -of_v[k], of_w[k] = -of_w[k];
  combine(at, v, of_w.data(), out);
  combine(at, w, of_v.data(), out);
  for (std::int64_t q = 0; q < at.devices; ++q) {
    std::fill(out + q * at.rows, out + q * at.rows + at.after(q), T(0));
  }
  // w = tau y - tau / 2 (tau y)^H u u
  const T half =
      rows::times(tau * rows::Real<T>(0.5), rows::times(rows::conjugate(tau), dot(at, out, u)));
  for (std::int64_t q = 0; q < at.devices; ++q) {
    for (std::int64_t j = q * at.rows + at.top(); j < (q + 1) * at.rows; ++j) {
      out[j] = rows::times(tau, out[j]) - rows::times(half, u[j]);
    }
  }
}

LOCKSTEP_TYPES(reflector, Place)
LOCKSTEP_TYPES(correct, Place)

// The place that the panel's shape and s32 (tile, step, column) tell; false if they cannot be.
bool read_place(const ffi::Buffer& panel, const ffi::Buffer& where, Place& place) {
  if (panel.rank != 3 || !where.is(ffi::Type::kS32, {3})) return false;
  const auto* at = where.as<const std::int32_t>();
  place = {panel.dims[1], panel.dims[2], at[0], at[1], at[2]};
  return ffi::is_number(panel.type) && place.tile >= 1 && place.step >= 0 &&
         (place.step + 1) * place.tile <= place.rows && place.width() == panel.dims[0] &&
         place.column >= 0 && place.column < place.width();
}

}  // namespace
}  // namespace lockstep

// panel, v, w (width, P, R), s32 (tile, step, column) -> u (P, R), (diagonal, beta, tau).
extern "C" lockstep::ffi::Error* lockstep_reflector(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 4 || out.size != 2 || !read_place(in[0], in[3], at) || !in[1].is_like(in[0]) ||
      !in[2].is_like(in[0]) || !out[0].is(in[0].type, {at.devices, at.rows}) ||
      !out[1].is(in[0].type, {3})) {
    return ffi::error(*frame, "lockstep_reflector: shapes, types or place do not fit.");
  }
  reflector_of_type(in[0].type, *frame, at);
  return nullptr;
}

// y, u (P, R), v, w (width, P, R), tau (), s32 (tile, step, column) -> w (P, R) of this column.
extern "C" lockstep::ffi::Error* lockstep_correct(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 6 || out.size != 1 || !read_place(in[2], in[5], at) || !in[3].is_like(in[2]) ||
      !in[0].is(in[2].type, {at.devices, at.rows}) || !in[1].is_like(in[0]) ||
      !in[4].is(in[2].type, {}) || !out[0].is_like(in[0])) {
    return ffi::error(*frame, "lockstep_correct: shapes, types or place do not fit.");
  }
  correct_of_type(in[2].type, *frame, at);
  return nullptr;
}
