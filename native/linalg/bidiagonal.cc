// Singular values by reduction to bidiagonal form (`lockstep/linalg/_bidiagonalize.py`): the halves
// of a column, with the pass over the trailing matrix, whose memory bounds it, in the first; and
// the values of the bidiagonal matrix.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "linalg/blas.h"
#include "linalg/column.h"
#include "linalg/ffi.h"
#include "linalg/latest.h"
#include "linalg/rows.h"
#include "linalg/types.h"

namespace lockstep {
namespace {

using column::Place;

constexpr rows::Pass kProduct{true, false, false, false};
constexpr rows::Pass kAdjoint{false, false, true, true};

// Rows that are read twice, from the cache the second time.
constexpr std::int64_t kRows = 4;

// For each row a_i from `top` on, with the columns from there on of each device:
// y_i = tau (a_i v - less_i) where the row comes after this column, and w += conj(a_i) (r_i - y_i).
template <typename T>
LOCKSTEP_INLINE void pass(const Place& at, std::int64_t me, const T* a, const T* v, T tau,
                          const T* less, const T* r, T* y, T* w) {
  const std::int64_t rows = at.rows, top = at.top(), after = at.after(me);
  for (std::int64_t i = top; i < rows; i += kRows) {
    const std::int64_t count = std::min(kRows, rows - i);
    T sums[kRows] = {}, rest[kRows] = {};
    for (std::int64_t q = 0; q < at.devices; ++q)
      rows::all<T, kProduct>(a + (i * at.devices + q) * rows + top, at.size(), count, rows - top,
                             v + q * rows + top, sums, nullptr, nullptr);
    for (std::int64_t k = 0; k < count; ++k) {
      y[i + k] = i + k < after ? T(0) : rows::times(tau, sums[k] - less[i + k]);
      rest[k] = r[i + k] - y[i + k];
    }
    for (std::int64_t q = 0; q < at.devices; ++q)
      rows::all<T, kAdjoint>(a + (i * at.devices + q) * rows + top, at.size(), count, rows - top,
                             nullptr, nullptr, rest, w + q * rows + top);
  }
}

// The reflector v of this column, what the row is before the pass, and this device's part of the
// pass.
template <typename T>
LOCKSTEP_INLINE void left_half(const ffi::Frame& frame, const Place& at) {
  const auto& in = frame.arguments;
  const T *left = in[3].as<const T>(), *right = in[4].as<const T>();
  const std::int64_t count = 2 * at.column;  // vectors of the columns before
  const std::int64_t size = at.size(), here = at.slot(0), me = in[5].as<const std::int32_t>()[3];
  T *v = frame.results[0].as<T>(), *r = frame.results[1].as<T>();
  T *w = frame.results[2].as<T>(), *y = w + size, *scalars = frame.results[3].as<T>();

  std::copy_n(in[1].as<const T>() + at.column * size, size, v);
  column::leave(at, left, column::elements(at, right, count, here), v);
  const T pivot = v[here];
  at.clear_done(v);
  v[here] = pivot;
  const auto [beta, tau] = column::larfg(at, here, v);
  scalars[0] = beta;
  scalars[1] = tau;

  // The reflection by v also takes y from the row: the pass subtracts it, which finds it.
  std::copy_n(in[2].as<const T>() + at.column * size, size, r);
  column::leave(at, right, column::elements(at, left, count, here), r);
  at.clear_done(r);

  const std::int64_t own = me * at.rows;
  const std::vector<T> weights = column::dots(at, left, count, v);
  std::vector<T> less(static_cast<std::size_t>(at.rows));  // what a v has of the columns before
  column::add_combination(right + own + at.top(), size, count, at.rows - at.top(), weights.data(),
                          less.data() + at.top());
  std::fill(w, w + 2 * size, T(0));
  pass(at, me, in[0].as<const T>(), v, tau, less.data(), r + own, y + own, w);
}

// The reflector u of the row, and the vector x that goes with it, from the sum of the passes.
template <typename T>
LOCKSTEP_INLINE void right_half(const ffi::Frame& frame, const Place& at) {
  const auto& in = frame.arguments;
  const std::int64_t size = at.size(), next = at.slot(1);
  const T *r = in[0].as<const T>(), *w = in[1].as<const T>(), *y = w + size;
  const T* following = in[2].as<const T>() + (at.column + 1) * size;
  const T *left = in[3].as<const T>(), *right = in[4].as<const T>();
  T *u = frame.results[0].as<T>(), *x = frame.results[1].as<T>();
  T* scalars = frame.results[2].as<T>();

  std::fill(u, u + size, T(0));
  at.each([&](std::int64_t j) { u[j] = r[j] - y[j]; });
  at.clear_done(u);
  const T first = next < size ? u[next] : T(0);
  const auto [off, tau] = column::larfg(at, next, u);
  scalars[0] = off;
  scalars[1] = tau;
  std::fill(x, x + size, T(0));
  if (tau == T(0)) return;
  // (first - off) u = r - y - off e, where e has the place of the next column: so for the products.
  at.each([&](std::int64_t j) { x[j] = (w[j] - rows::times(off, following[j])) / (first - off); });
  column::leave(at, left, column::dots(at, right, 2 * at.column + 1, u), x);
  at.clear_done(x);
  at.each([&](std::int64_t j) { x[j] = rows::times(tau, x[j]); });
}

LOCKSTEP_TYPES(left_half, Place)
LOCKSTEP_TYPES(right_half, Place)

// Whether columns (width + 1, P, R), left and right (2 width, P, R) and the place fit each other.
bool read_place(const ffi::Buffer& columns, const ffi::Buffer& left, const ffi::Buffer& right,
                const ffi::Buffer& where, std::int64_t words, Place& place) {
  if (columns.rank != 3 || !where.is(ffi::Type::kS32, {words})) return false;
  const std::int64_t width = columns.dims[0] - 1;
  return column::read(columns, where.as<const std::int32_t>(), width, place) &&
         left.is(columns.type, {2 * width, place.devices, place.rows}) && right.is_like(left);
}

// The diagonal and what is right of it, one after the other, become the singular values and numbers
// without a meaning. LAPACK's bdsqr without vectors iterates by lasq1 and, should that not
// converge, by QR. NaN where a number is not finite.
void to_values(std::vector<double>& both) {
  const int n = static_cast<int>(both.size() / 2);
  const bool finite = std::ranges::all_of(both, [](double one) { return std::isfinite(one); });
  std::vector<double> work(2 * both.size());
  int info = finite ? 0 : 1;
  const int none = 0, one = 1;
  double no_vectors = 0;
  if (finite)
    blas::values.dbdsqr("U", &n, &none, &none, &none, both.data(), both.data() + n, &no_vectors,
                        &one, &no_vectors, &one, &no_vectors, &one, work.data(), &info);
  if (info != 0) std::ranges::fill(both, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace
}  // namespace lockstep

// a (R, P, R), columns (width + 1, P, R), lines (width, P, R), left, right (2 width, P, R), s32
// (tile, step, column, me) -> v, r (P, R), w and y (2, P, R), (beta, tau).
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_left(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 6 || out.size != 4 || !read_place(in[1], in[3], in[4], in[5], 4, at) ||
      !in[0].is(in[1].type, {at.rows, at.devices, at.rows}) ||
      !in[2].is(in[1].type, {at.width(), at.devices, at.rows}) ||
      !out[0].is(in[1].type, {at.devices, at.rows}) || !out[1].is_like(out[0]) ||
      !out[2].is(in[1].type, {2, at.devices, at.rows}) || !out[3].is(in[1].type, {2}) ||
      in[5].as<const std::int32_t>()[3] < 0 || in[5].as<const std::int32_t>()[3] >= at.devices)
    return ffi::error(*frame, "lockstep_bidiagonal_left: shapes, types or place do not fit.");
  return ffi::run(*frame, [&] { left_half_of_type(in[1].type, *frame, at); });
}

// r (P, R), w and y (2, P, R), columns (width + 1, P, R), left, right (2 width, P, R) with v and y
// of this column, s32 (tile, step, column) -> u, x (P, R), (off, tau).
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_right(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 6 || out.size != 3 || !read_place(in[2], in[3], in[4], in[5], 3, at) ||
      !in[0].is(in[2].type, {at.devices, at.rows}) ||
      !in[1].is(in[2].type, {2, at.devices, at.rows}) || !out[0].is_like(in[0]) ||
      !out[1].is_like(in[0]) || !out[2].is(in[2].type, {2}))
    return ffi::error(*frame, "lockstep_bidiagonal_right: shapes, types or place do not fit.");
  return ffi::run(*frame, [&] { right_half_of_type(in[2].type, *frame, at); });
}

// The diagonal (n) and what is right of it (n, the last one is not read), real -> the singular
// values (n), descending.
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_values(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 2 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_bidiagonal_values: wanted are 2 arguments and 1 result.");
  const ffi::Buffer &d = frame->arguments[0], &e = frame->arguments[1], &out = frame->results[0];
  const bool is_real = d.type == ffi::Type::kF32 || d.type == ffi::Type::kF64;
  if (!is_real || d.rank != 1 || !e.is_like(d) || !out.is_like(d))
    return ffi::error(*frame, "lockstep_bidiagonal_values: wanted are three real vectors.");
  return blas::for_type(d.type, *frame, [&]<typename T>(T) {
    if constexpr (!rows::kComplex<T>) {
      static auto& latest = *new Latest<double>;  // kernels may run while the process exits
      const auto n = static_cast<std::size_t>(d.dims[0]);
      std::vector<double> both(2 * n);
      std::copy_n(d.as<const T>(), n, both.begin());
      std::copy_n(e.as<const T>(), n, both.begin() + d.dims[0]);
      if (n > 0) both.back() = 0;
      latest.in_place(both, {}, [&] { to_values(both); });
      std::transform(both.begin(), both.begin() + d.dims[0], out.as<T>(),
                     [](double one) { return static_cast<T>(one); });
    }
  });
}
