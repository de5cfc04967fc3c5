// A panel of Cholesky's factorization (`lockstep/linalg/_cholesky.py`), in place. Its columns lie
// in as many places as there are devices; they are brought together for the products, and go from
// the cache to their places as soon as they are solved.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/triangle.h"

namespace lockstep {
namespace {

// `rows` rows of `devices` pieces of `tile` columns: in the matrix, and side by side.
struct Shape {
  std::int64_t rows, devices, tile;
};

// Pieces that lie `stride` apart in `from` and `to` apart in `out`.
template <typename T>
void copy(const Shape& shape, const T* from, std::int64_t stride, T* out, std::int64_t to) {
  for (std::int64_t i = 0; i < shape.rows * shape.devices; ++i)
    std::copy_n(from + i * stride, shape.tile, out + i * to);
}

// What a superstep knows: a (size, devices, size), rows (width, devices, kept), l (width, width).
template <typename T>
struct Superstep {
  T* a;
  const T *rows, *l;
  std::int64_t size, devices, tile, kept, top, me;

  T* row(std::int64_t i) const { return a + i * devices * size; }

  void write_own_rows() const {
    copy<T>({tile, devices, tile}, l + me * tile * devices * tile, tile, row(top) + top, size);
  }

  void finish_rows_below() const {
    const std::int64_t width = devices * tile, end = top + tile, count = size - end;
    const auto panel = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(count * width));
    copy<T>({count, devices, tile}, row(end) + top, size, panel.get(), tile);
    for (std::int64_t p = 0; p < devices && top > 0; ++p)
      blas::gemm<T>(count, width, top, T(-1), {row(end) + p * size, devices * size, false},
                    {rows + p * kept, devices * kept, true}, T(1), panel.get(), width);
    triangle::Solver<T> solver(l, width);
    for (std::int64_t at = 0; at < count; at += triangle::kChunk) {
      const std::int64_t chunk = std::min(triangle::kChunk, count - at);
      T* x = panel.get() + at * width;
      solver.solve(x, chunk, 0, width);
      copy<T>({chunk, devices, tile}, x, tile, row(end + at) + top, size);
    }
  }
};

bool fits(const ffi::Buffer& a, const ffi::Buffer& rows, const ffi::Buffer& l,
          const ffi::Buffer& words) {
  if (a.rank != 3 || rows.rank != 3 || !words.is(ffi::Type::kS32, {2})) return false;
  const std::int64_t devices = a.dims[1], width = rows.dims[0], kept = rows.dims[2];
  if (a.dims[0] != a.dims[2] || devices == 0 || width == 0 || width % devices != 0 ||
      !rows.is(a.type, {width, devices, kept}) || !l.is(a.type, {width, width}))
    return false;
  const std::int32_t *place = words.as<const std::int32_t>(), top = place[0], me = place[1];
  return top >= 0 && top <= kept && top + width / devices <= a.dims[0] && me >= 0 && me < devices;
}

}  // namespace
}  // namespace lockstep

// a (R, P, R), rows (W, P, k), l (W, W), s32 (top, me) -> a, in place, with the factor in the
// columns of this superstep, from the local row `top` on.
extern "C" lockstep::ffi::Error* lockstep_factor_panel(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 4 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_factor_panel: wanted are 4 arguments and 1 result.");
  const ffi::Buffer &a = frame->results[0], &rows = frame->arguments[1], &l = frame->arguments[2];
  if (!frame->is_in_place())
    return ffi::error(*frame, "lockstep_factor_panel: the result is not in place.");
  if (!fits(a, rows, l, frame->arguments[3]))
    return ffi::error(*frame, "lockstep_factor_panel: the panel does not lie in its matrix.");
  const std::int32_t* place = frame->arguments[3].as<const std::int32_t>();
  return blas::for_type(a.type, *frame, [&]<typename T>(T) {
    const std::int64_t size = a.dims[0], devices = a.dims[1], tile = rows.dims[0] / devices;
    const Superstep<T> step{a.as<T>(), rows.as<const T>(), l.as<const T>(), size,    devices,
                            tile,      rows.dims[2],       place[0],        place[1]};
    if (place[0] + tile < size) step.finish_rows_below();
    step.write_own_rows();
  });
}
