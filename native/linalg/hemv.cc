// The product of a Hermitian matrix with a vector, reading one triangle: what bounds the reduction
// to tridiagonal form (`lockstep/linalg/_tridiagonalize.py`), which is limited by memory.
//
// A device has R rows of the matrix, in the slots of `lockstep/linalg/_layout.py`: its row i is an
// array of (P, R) columns, and tile s of T rows is eliminated before tile s + 1, within a tile
// device 0's rows first. "Lower" is meant in that order. Of every element a_ij below the diagonal
// the device adds a_ij v_j to y_i and conj(a_ij) v_i to y_j; the sum of all devices' y is the
// product. Rows and columns before `top` are left out.
#include <algorithm>
#include <cstring>

#include "linalg/ffi.h"
#include "linalg/rows.h"
#include "linalg/types.h"

namespace lockstep {
namespace {

// Rows whose columns are walked through together, so that v and y stay in the first-level cache.
constexpr std::int64_t kRows = 4;

struct Shape {
  std::int64_t rows, devices, tile, top, me;
};

// The lower triangle of a tile on the diagonal, whose diagonal is real.
template <typename T>
LOCKSTEP_INLINE void triangle(const T* a, std::int64_t stride, std::int64_t size, const T* v,
                              T* y) {
  for (std::int64_t i = 0; i < size; ++i) {
    const T* row = a + i * stride;
    T total = v[i] * std::real(row[i]);
    for (std::int64_t j = 0; j < i; ++j) {
      total += rows::times(row[j], v[j]);
      y[j] += rows::times(rows::conjugate(row[j]), v[i]);
    }
    y[i] += total;
  }
}

template <typename T>
LOCKSTEP_INLINE void product(const ffi::Frame& frame, const Shape& shape) {
  const T *a = frame.arguments[0].as<const T>(), *v = frame.arguments[1].as<const T>();
  T* y = frame.results[0].as<T>();
  const auto [rows, devices, tile, top, me] = shape;
  const std::int64_t stride = devices * rows;
  std::memset(static_cast<void*>(y), 0, static_cast<std::size_t>(stride) * sizeof(T));
  for (std::int64_t start = top; start < rows; start += tile) {
    const std::int64_t end = std::min(start + tile, rows);
    for (std::int64_t i = start; i < end; i += kRows) {
      const std::int64_t count = std::min(kRows, end - i);
      T sums[kRows] = {};
      for (std::int64_t q = 0; q < devices; ++q) {
        const std::int64_t columns = (q < me ? end : start) - top, at = q * rows + top;
        rows::all<T, rows::kHermitian>(a + i * stride + at, stride, count, columns, v + at, sums,
                                       v + me * rows + i, y + at);
      }
      for (std::int64_t r = 0; r < count; ++r) y[me * rows + i + r] += sums[r];
    }
    const std::int64_t at = me * rows + start;
    triangle(a + start * stride + at, stride, end - start, v + at, y + at);
  }
}

LOCKSTEP_TYPES(product, Shape)

}  // namespace
}  // namespace lockstep

// a (R, P, R), v (P, R), s32 (tile, top, me) -> y (P, R).
extern "C" lockstep::ffi::Error* lockstep_hemv(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 3 || frame->results.size != 1) {
    return ffi::error(*frame, "lockstep_hemv: wanted are 3 arguments and 1 result.");
  }
  const ffi::Buffer &a = frame->arguments[0], &v = frame->arguments[1];
  const ffi::Buffer &where = frame->arguments[2], &y = frame->results[0];
  const auto dims = a.shape();
  const bool fits = a.rank == 3 && ffi::is_number(a.type) && dims[0] == dims[2] &&
                    v.is(a.type, {dims[1], dims[2]}) && y.is(a.type, {dims[1], dims[2]}) &&
                    where.is(ffi::Type::kS32, {3});
  if (!fits) return ffi::error(*frame, "lockstep_hemv: shapes or types do not belong together.");
  const auto* at = where.as<const std::int32_t>();
  const Shape shape{dims[0], dims[1], at[0], at[1], at[2]};
  if (shape.tile < 1 || shape.top < 0 || shape.me < 0 || shape.me >= shape.devices) {
    return ffi::error(*frame, "lockstep_hemv: tile, top or device is out of range.");
  }
  product_of_type(a.type, *frame, shape);
  return nullptr;
}
