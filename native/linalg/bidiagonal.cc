// Singular values by reduction to bidiagonal form (`lockstep/linalg/_bidiagonalize.py`): the pass
// over the trailing matrix, whose memory bounds it, and the values of the bidiagonal matrix.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/rows.h"
#include "linalg/types.h"

namespace lockstep {
namespace {

constexpr rows::Pass kProduct{true, false, false, false};
constexpr rows::Pass kAdjoint{false, false, true, true};

// Rows that are read twice, from the cache the second time.
constexpr std::int64_t kRows = 4;

// For each row a_i from `top` on, with the columns from there on of each device:
// y_i = tau_i (a_i v - less_i), and w += conj(a_i) (r_i - y_i).
template <typename T>
LOCKSTEP_INLINE void pass(const ffi::Frame& frame, const std::int64_t& top) {
  const ffi::Buffer& a = frame.arguments[0];
  const std::int64_t rows = a.dims[0], devices = a.dims[1];
  const T *from = a.as<const T>(), *v = frame.arguments[1].as<const T>(),
          *tau = frame.arguments[2].as<const T>(), *less = frame.arguments[3].as<const T>(),
          *r = frame.arguments[4].as<const T>();
  T *y = frame.results[0].as<T>(), *w = frame.results[1].as<T>();
  std::memset(static_cast<void*>(y), 0, static_cast<std::size_t>(rows) * sizeof(T));
  std::memset(static_cast<void*>(w), 0, static_cast<std::size_t>(devices * rows) * sizeof(T));
  for (std::int64_t i = top; i < rows; i += kRows) {
    const std::int64_t count = std::min(kRows, rows - i);
    T sums[kRows] = {}, left[kRows] = {};
    for (std::int64_t q = 0; q < devices; ++q)
      rows::all<T, kProduct>(from + (i * devices + q) * rows + top, devices * rows, count,
                             rows - top, v + q * rows + top, sums, nullptr, nullptr);
    for (std::int64_t k = 0; k < count; ++k) {
      y[i + k] = rows::times(tau[i + k], sums[k] - less[i + k]);
      left[k] = r[i + k] - y[i + k];
    }
    for (std::int64_t q = 0; q < devices; ++q)
      rows::all<T, kAdjoint>(from + (i * devices + q) * rows + top, devices * rows, count,
                             rows - top, nullptr, nullptr, left, w + q * rows + top);
  }
}

LOCKSTEP_TYPES(pass, std::int64_t)

// Calls LAPACK's bdsqr without vectors, which iterates by lasq1 and, should that not converge, by
// QR; gives NaN where a number is not finite.
template <typename T>
void values_of(const T* diagonal, const T* right, T* values, int n) {
  const auto finite = [n](const T* x) {
    return std::all_of(x, x + n, [](T one) { return std::isfinite(one); });
  };
  std::copy_n(diagonal, n, values);
  std::vector<T> off(right, right + n), work(std::size_t{4} * off.size());
  if (n > 0) off.back() = 0;
  int info = finite(values) && finite(off.data()) ? 0 : 1;
  const int none = 0, one = 1;
  T no_vectors = 0;
  if (info == 0)
    blas::of<T>().bdsqr("U", &n, &none, &none, &none, values, off.data(), &no_vectors, &one,
                        &no_vectors, &one, &no_vectors, &one, work.data(), &info);
  if (info != 0) std::fill(values, values + n, std::numeric_limits<T>::quiet_NaN());
}

}  // namespace
}  // namespace lockstep

// a (R, P, R), v (P, R), tau, less and r (R), s32 (1: the first row and column) -> y (R), w (P, R).
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_pass(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 6 || frame->results.size != 2)
    return ffi::error(*frame, "lockstep_bidiagonal_pass: wanted are 6 arguments and 2 results.");
  const ffi::Buffer &a = frame->arguments[0], &word = frame->arguments[5];
  const auto dims = a.shape();
  const auto is_column = [&](const ffi::Buffer& one) { return one.is(a.type, {dims[0]}); };
  const auto is_vector = [&](const ffi::Buffer& one) { return one.is(a.type, {dims[1], dims[2]}); };
  const bool fits = ffi::is_number(a.type) && a.rank == 3 && dims[0] == dims[2] &&
                    is_vector(frame->arguments[1]) && is_column(frame->arguments[2]) &&
                    is_column(frame->arguments[3]) && is_column(frame->arguments[4]) &&
                    word.is(ffi::Type::kS32, {1}) && is_column(frame->results[0]) &&
                    is_vector(frame->results[1]);
  if (!fits) return ffi::error(*frame, "lockstep_bidiagonal_pass: its arguments do not fit.");
  const std::int64_t top = word.as<const std::int32_t>()[0];
  if (top < 0 || top > dims[0])
    return ffi::error(*frame, "lockstep_bidiagonal_pass: the first row is out of range.");
  pass_of_type(a.type, *frame, top);
  return nullptr;
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
    if constexpr (!rows::kComplex<T>)
      values_of(d.as<const T>(), e.as<const T>(), out.as<T>(), static_cast<int>(d.dims[0]));
  });
}
