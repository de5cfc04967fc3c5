// b <- b - y t z: columns of a matrix, reflected by a panel (`lockstep/linalg/_householder.py`).
//
// One kernel, because XLA makes a product such as y t, which needs nothing but the panel, as early
// as it can, and so holds those of all panels.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "linalg/blas.h"
#include "linalg/ffi.h"

namespace lockstep {
namespace {

// Rows of y t made at a time: the BLAS packs all of z for each such product.
constexpr std::int64_t kRows = 4096;

template <typename T>
struct Reflection {
  const T *y, *t, *z;
  std::int64_t rows, inner, columns;  // of y, and of z

  // Changes `count` matrices b, `step` elements apart, whose rows lie `stride` apart; their y
  // follow each other.
  void apply(T* b, std::int64_t stride, std::int64_t count, std::int64_t step) const {
    const bool left = rows * count < columns;  // the association that is less to do
    const auto size = static_cast<std::size_t>(inner * (left ? std::min(kRows, rows) : columns));
    const auto product = std::make_unique_for_overwrite<T[]>(size);
    if (!left)
      blas::gemm<T>(inner, columns, inner, T(1), {t, inner, false}, {z, columns, false}, T(0),
                    product.get(), columns);
    for (std::int64_t i = 0; i < count; ++i) {
      const T* own = y + i * rows * inner;
      if (!left) {
        blas::gemm<T>(rows, columns, inner, T(-1), {own, inner, false},
                      {product.get(), columns, false}, T(1), b + i * step, stride);
        continue;
      }
      for (std::int64_t at = 0; at < rows; at += kRows) {
        const std::int64_t height = std::min(kRows, rows - at);
        blas::gemm<T>(height, inner, inner, T(1), {own + at * inner, inner, false},
                      {t, inner, false}, T(0), product.get(), inner);
        blas::gemm<T>(height, columns, inner, T(-1), {product.get(), inner, false},
                      {z, columns, false}, T(1), b + i * step + at * stride, stride);
      }
    }
  }
};

bool is_in(std::int64_t first, std::int64_t count, std::int64_t all) {
  return first >= 0 && first <= all - count;
}

}  // namespace
}  // namespace lockstep

// b (c, R, k), y (c, H, w), t (w, w), z (w, n), s32 (2: the first row, the first column) -> b in
// place, with its rows from the first on, H of them, and n columns reflected.
extern "C" lockstep::ffi::Error* lockstep_reflect(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 5 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_reflect: wanted are 5 arguments and 1 result.");
  const ffi::Buffer &b = frame->results[0], &y = frame->arguments[1], &t = frame->arguments[2],
                    &z = frame->arguments[3], &words = frame->arguments[4];
  if (!frame->is_in_place() || b.rank != 3 || y.type != b.type || y.rank != 3 ||
      y.dims[0] != b.dims[0] || !t.is(b.type, {y.dims[2], y.dims[2]}) || z.type != b.type ||
      z.rank != 2 || z.dims[0] != y.dims[2] || !words.is(ffi::Type::kS32, {2}))
    return ffi::error(*frame, "lockstep_reflect: its arguments do not fit.");
  const std::int64_t top = words.as<const std::int32_t>()[0];
  const std::int64_t at = words.as<const std::int32_t>()[1];
  if (!is_in(top, y.dims[1], b.dims[1]) || !is_in(at, z.dims[1], b.dims[2]))
    return ffi::error(*frame, "lockstep_reflect: the columns do not lie in their matrix.");
  return blas::for_type(b.type, *frame, [&]<typename T>(T) {
    const std::int64_t stride = b.dims[2];
    const Reflection<T> reflection{y.as<const T>(), t.as<const T>(), z.as<const T>(),
                                   y.dims[1],       y.dims[2],       z.dims[1]};
    reflection.apply(b.as<T>() + top * stride + at, stride, b.dims[0], b.dims[1] * stride);
  });
}
