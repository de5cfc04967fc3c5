// Singular values and eigenvalues by way of a band (`lockstep/linalg/_band.py`): the reflectors of
// a block of rows or columns, and what LAPACK makes of the band.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>
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

// The QR factorization (I - V T V^H) R of the columns x, whose R lies in the slots of the superstep
// `first`. Each column is reflected by all before it when its turn comes (LAPACK's geqrt).
template <typename T>
LOCKSTEP_INLINE void block_reflector(const ffi::Frame& frame, const Place& first) {
  const std::int64_t width = first.width(), size = first.size();
  const T* x = frame.arguments[0].as<const T>();
  T *v = frame.results[0].as<T>(), *t = frame.results[1].as<T>(), *r = frame.results[2].as<T>();
  std::fill(v, v + width * size, T(0));
  std::fill(t, t + width * width, T(0));
  std::fill(r, r + width * width, T(0));
  if (first.top() == first.rows) return;  // there is no such superstep, and nothing is left
  for (Place at = first; at.column < width; ++at.column) {
    const std::int64_t c = at.column;
    T* u = v + c * size;
    at.each([&](std::int64_t j) { u[j] = x[c * size + j]; });
    const std::vector<T> products = column::dots(at, v, c, u);
    std::vector<T> weights(products.size());  // T^H V^H u
    for (std::int64_t i = 0; i < c; ++i)
      for (std::int64_t k = 0; k <= i; ++k)
        weights[static_cast<std::size_t>(i)] +=
            rows::times(rows::conjugate(t[k * width + i]), products[static_cast<std::size_t>(k)]);
    column::leave(at, v, weights, u);
    for (std::int64_t k = 0; k <= c; ++k) r[k * width + c] = u[at.slot(k - c)];
    at.clear_done(u);
    u[at.slot(0)] = r[c * width + c];
    const auto [beta, tau] = column::larfg(at, at.slot(0), u);
    r[c * width + c] = beta;
    t[c * width + c] = tau;
    const std::vector<T> others = column::dots(at, v, c, u);
    for (std::int64_t i = 0; i < c; ++i)
      for (std::int64_t k = i; k < c; ++k)
        t[i * width + c] -=
            rows::times(tau, rows::times(t[i * width + k], others[static_cast<std::size_t>(k)]));
  }
}

LOCKSTEP_TYPES(block_reflector, Place)

// The type in which bands are reduced: see `blas::OfValues`.
template <typename T>
using Wide = std::conditional_t<rows::kComplex<T>, std::complex<double>, double>;

// LAPACK's gbbrd without vectors: the bidiagonal form, d and e, of an upper band of n rows with
// `above` diagonals above the main one, by columns.
template <typename T>
void gbbrd(std::int64_t n, std::int64_t above, T* band, double* d, double* e) {
  const int size = static_cast<int>(n), ku = static_cast<int>(above), ld = ku + 1;
  const int none = 0, one = 1;
  std::vector<T> work(static_cast<std::size_t>(2 * n));
  T no_vectors = 0;
  int info = 0;
  const auto call = [&](auto routine, auto*... rest) {
    routine("N", &size, &size, &none, &none, &ku, band, &ld, d, e, &no_vectors, &one, &no_vectors,
            &one, &no_vectors, &one, work.data(), rest..., &info);
  };
  if constexpr (rows::kComplex<T>) {
    std::vector<double> real_work(static_cast<std::size_t>(n));
    call(blas::values.zgbbrd, real_work.data());
  } else {
    call(blas::values.dgbbrd);
  }
}

// LAPACK's hbtrd and sterf: the eigenvalues, ascending, of a Hermitian band of n rows with `above`
// diagonals above the main one, by columns. NaN where sterf does not converge.
template <typename T>
void band_eigenvalues(std::int64_t n, std::int64_t above, T* band, double* values) {
  const int size = static_cast<int>(n), kd = static_cast<int>(above), ld = kd + 1, one = 1;
  std::vector<double> off(static_cast<std::size_t>(n));
  std::vector<T> work(static_cast<std::size_t>(n));
  T no_vectors = 0;
  int info = 0;  // hbtrd's tells of wrong arguments only
  (rows::kComplex<T> ? blas::values.zhbtrd : blas::values.dsbtrd)(
      "N", "U", &size, &kd, band, &ld, values, off.data(), &no_vectors, &one, work.data(), &info);
  blas::values.dsterf(&size, values, off.data(), &info);
  if (info != 0) std::fill_n(values, n, std::numeric_limits<double>::quiet_NaN());
}

// Calls `reduce` with the upper band, or the upper half of a Hermitian one, of n = steps width rows
// whose blocks (steps, 2, width, width) `numbers` holds; the 2 n doubles that it may fill are the
// start of `numbers` then, as reals of its type. The blocks are the triangle on the diagonal, and
// the adjoint of the one right of it. Where a number is not finite `reduce` is not called, since
// old versions of LAPACK might not end, and all are NaN.
template <typename T, typename Reduce>
void of_band(std::vector<T>& numbers, std::int64_t steps, std::int64_t width,
             const Reduce& reduce) {
  const std::int64_t n = steps * width, height = width + 1;
  // Its columns one after another: (i, j) is at width + i - j.
  std::vector<Wide<T>> band(static_cast<std::size_t>(n * height));
  for (std::int64_t s = 0; s < steps; ++s)
    for (std::int64_t i = 0; i < width; ++i)
      for (std::int64_t j = i; j < width; ++j) {
        const T* at = numbers.data() + (2 * s * width + i) * width + j;
        Wide<T>* column = band.data() + (s * width + j) * height;
        column[width + i - j] = *at;
        if (s + 1 < steps)
          band[static_cast<std::size_t>(((s + 1) * width + i) * height + j - i)] =
              rows::conjugate(at[width * width]);
      }
  std::vector<double> found(static_cast<std::size_t>(2 * n));
  if (std::ranges::all_of(band, [](Wide<T> one) {
        return std::isfinite(std::real(one)) && std::isfinite(std::imag(one));
      }))
    reduce(n, width, band.data(), found.data());
  else
    std::ranges::fill(found, std::numeric_limits<double>::quiet_NaN());
  std::ranges::transform(found, reinterpret_cast<rows::Real<T>*>(numbers.data()),
                         [](double one) { return static_cast<rows::Real<T>>(one); });
}

// The type of the parts of numbers.
ffi::Type real(ffi::Type type) {
  if (type == ffi::Type::kC64) return ffi::Type::kF32;
  return type == ffi::Type::kC128 ? ffi::Type::kF64 : type;
}

// Reduces the band of the argument (steps, 2, width, width) by `reduce`, once for the devices of a
// process, and gives the results, one or two of steps width reals, what `of_band` finds. `wrong` is
// the error where shapes or types do not fit.
template <typename Reduce>
ffi::Error* reduce_band(const ffi::Frame& frame, const char* wrong, const Reduce& reduce) {
  const ffi::Buffer &blocks = frame.arguments[0], &first = frame.results[0];
  const auto count = static_cast<std::size_t>(frame.results.size);
  const ffi::Buffer& last = frame.results[count - 1];
  if (blocks.rank != 4 || blocks.dims[0] < 1 || blocks.dims[2] < 1 ||
      !blocks.is(blocks.type, {blocks.dims[0], 2, blocks.dims[2], blocks.dims[2]}) ||
      !first.is(real(blocks.type), {blocks.dims[0] * blocks.dims[2]}) || !last.is_like(first))
    return ffi::error(frame, wrong);
  return blas::for_type(blocks.type, frame, [&]<typename T>(T) {
    static auto& latest = *new Latest<T>;  // kernels may run while the process exits
    const std::int64_t steps = blocks.dims[0], width = blocks.dims[2], n = steps * width;
    std::vector<T> numbers(static_cast<std::size_t>(2 * n * width));
    std::copy_n(blocks.as<const T>(), numbers.size(), numbers.begin());
    // `Latest` tells blocks of another shape by the number of integers.
    std::vector<std::int32_t> shape(static_cast<std::size_t>(width));
    latest.in_place(numbers, shape, [&] { of_band(numbers, steps, width, reduce); });
    const auto* const found = reinterpret_cast<const rows::Real<T>*>(numbers.data());
    for (std::size_t i = 0; i < count; ++i)
      std::copy_n(found + static_cast<std::int64_t>(i) * n, n,
                  frame.results[i].as<rows::Real<T>>());
  });
}

}  // namespace
}  // namespace lockstep

// x (width, P, R), s32 (tile, step) -> v (width, P, R), t and r (width, width).
extern "C" lockstep::ffi::Error* lockstep_block_reflector(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 2 || out.size != 3 || in[0].rank != 3 || !in[1].is(ffi::Type::kS32, {2}) ||
      !column::read_step(in[0], in[1].as<const std::int32_t>(), in[0].dims[0], at) ||
      !out[0].is_like(in[0]) || !out[1].is(in[0].type, {at.width(), at.width()}) ||
      !out[2].is_like(out[1]))
    return ffi::error(*frame, "lockstep_block_reflector: shapes, types or place do not fit.");
  return ffi::run(*frame, [&] { block_reflector_of_type(in[0].type, *frame, at); });
}

// blocks (steps, 2, width, width) -> diagonal and what is right of it (steps width), real.
extern "C" lockstep::ffi::Error* lockstep_band_to_bidiagonal(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 1 || frame->results.size != 2)
    return ffi::error(*frame, "lockstep_band_to_bidiagonal: wanted are 1 argument and 2 results.");
  return reduce_band(*frame, "lockstep_band_to_bidiagonal: shapes or types do not fit.",
                     [](std::int64_t n, std::int64_t above, auto* band, auto* found) {
                       gbbrd(n, above, band, found, found + n);
                       found[2 * n - 1] = 0;
                     });
}

// blocks (steps, 2, width, width) -> eigenvalues (steps width), real, ascending.
extern "C" lockstep::ffi::Error* lockstep_band_eigenvalues(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 1 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_band_eigenvalues: wanted are 1 argument and 1 result.");
  return reduce_band(*frame, "lockstep_band_eigenvalues: shapes or types do not fit.",
                     [](std::int64_t n, std::int64_t above, auto* band, auto* found) {
                       band_eigenvalues(n, above, band, found);
                     });
}
