// Whether a matrix is Hermitian (`lockstep/linalg/_hermitian.py`) is told by two products with a
// vector, of the matrix and of its adjoint, and by its largest element. One pass over the matrix
// makes all three, for memory is what bounds them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "linalg/ffi.h"
#include "linalg/rows.h"
#include "linalg/types.h"

namespace lockstep {
namespace {

// A block that is read twice, from the first-level cache the second time.
constexpr std::int64_t kRows = 4;
constexpr std::int64_t kColumns = 512;

// The largest part (real or imaginary) of an element, in modulus; NaN is passed over.
template <typename R>
LOCKSTEP_INLINE R largest(const R* x, std::int64_t count, R most) {
  for (std::int64_t i = 0; i < count; ++i) {
    const R size = std::abs(x[i]);
    most = size > most ? size : most;
  }
  return most;
}

struct Shape {
  std::int64_t rows, columns;
};

template <typename T>
LOCKSTEP_INLINE void multiply(const ffi::Frame& frame, const Shape& shape) {
  using R = rows::Real<T>;
  const auto [m, n] = shape;
  const T *a = frame.arguments[0].as<const T>(), *v = frame.arguments[1].as<const T>(),
          *w = frame.arguments[2].as<const T>();
  T *sums = frame.results[0].as<T>(), *y = frame.results[1].as<T>();
  std::memset(static_cast<void*>(sums), 0, static_cast<std::size_t>(m) * sizeof(T));
  std::memset(static_cast<void*>(y), 0, static_cast<std::size_t>(n) * sizeof(T));
  R most = 0;
  for (std::int64_t i = 0; i < m; i += kRows) {
    const std::int64_t count = std::min(kRows, m - i);
    for (std::int64_t j = 0; j < n; j += kColumns) {
      const std::int64_t columns = std::min(kColumns, n - j);
      const T* block = a + i * n + j;
      rows::all<T, rows::kHermitian>(block, n, count, columns, v + j, sums + i, w + i, y + j);
      for (std::int64_t r = 0; r < count; ++r)
        most = largest(reinterpret_cast<const R*>(block + r * n),
                       columns * static_cast<std::int64_t>(sizeof(T) / sizeof(R)), most);
    }
  }
  *frame.results[2].as<R>() = most;
}

LOCKSTEP_TYPES(multiply, Shape)

}  // namespace
}  // namespace lockstep

// a (m, n), v (n), w (m) -> a v, (m), a^H w, (n), and the largest part of an element.
extern "C" lockstep::ffi::Error* lockstep_two_products(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 3 || frame->results.size != 3)
    return ffi::error(*frame, "lockstep_two_products: wanted are 3 arguments and 3 results.");
  const ffi::Buffer &a = frame->arguments[0], &most = frame->results[2];
  const bool is_double = a.type == ffi::Type::kF64 || a.type == ffi::Type::kC128;
  const bool fits =
      a.rank == 2 && ffi::is_number(a.type) && frame->arguments[1].is(a.type, {a.dims[1]}) &&
      frame->arguments[2].is(a.type, {a.dims[0]}) && frame->results[0].is(a.type, {a.dims[0]}) &&
      frame->results[1].is(a.type, {a.dims[1]}) &&
      most.is(is_double ? ffi::Type::kF64 : ffi::Type::kF32, {});
  if (!fits) return ffi::error(*frame, "lockstep_two_products: its arguments do not fit.");
  multiply_of_type(a.type, *frame, Shape{a.dims[0], a.dims[1]});
  return nullptr;
}
