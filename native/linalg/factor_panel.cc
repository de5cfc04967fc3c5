// A panel of Cholesky's factorization (`lockstep/linalg/_cholesky.py`), in place. What is left of
// it is summed as an adjoint, with the panel's columns side by side, which lie in as many places of
// the matrix as there are devices. Its rows are turned into that, solved, and turned back.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "linalg/adjoint.h"
#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/triangle.h"

namespace lockstep {
namespace {

// What a superstep knows: a (size, devices, size), rows (width, devices, kept), l (width, width).
template <typename T>
struct Superstep {
  T* a;
  const T *rows, *l;
  std::int64_t size, devices, tile, kept, top, me;

  T* row(std::int64_t i) const { return a + i * devices * size; }

  void write_own_rows() const {
    for (std::int64_t i = 0; i < tile; ++i)
      for (std::int64_t p = 0; p < devices; ++p)
        std::copy_n(l + ((me * tile + i) * devices + p) * tile, tile,
                    row(top + i) + p * size + top);
  }

  // The adjoint of the panel is made, for the BLAS packs its first operand faster, by columns.
  void finish_rows_below() const {
    constexpr std::int64_t kChunk = triangle::kChunk<T>;
    const std::int64_t width = devices * tile, end = top + tile, count = size - end;
    const std::int64_t stride = adjoint::stride_of(count);
    const auto memory =
        std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(width * stride));
    T* const panel = memory.get();
    for (std::int64_t p = 0; p < devices && top > 0; ++p)
      blas::gemm<T>(width, count, top, T(1), {rows + p * kept, devices * kept, false},
                    {row(end) + p * size, devices * size, true}, T(p > 0), panel, stride);
    triangle::Solver<T> solver(l, width);
    for (std::int64_t at = 0; at < count; at += kChunk) {
      const std::int64_t chunk = std::min(kChunk, count - at);
      fetch(end + at, chunk, panel + at, stride);
      solver.solve(panel + at, stride, chunk);
      store(end + at, chunk, panel + at, stride);
    }
  }

  // `count` rows of the panel without what is left of them, which is in `turned`, the adjoint.
  void fetch(std::int64_t first, std::int64_t count, T* turned, std::int64_t stride) const {
    for (std::int64_t p = 0; p < devices; ++p) {
      const T* const from = row(first) + p * size + top;
      T* const to = turned + p * tile * stride;
      if (top > 0)
        adjoint::copy_less(count, tile, from, devices * size, to, stride);
      else
        adjoint::copy(count, tile, from, devices * size, to, stride);
    }
  }

  void store(std::int64_t first, std::int64_t count, const T* turned, std::int64_t stride) const {
    for (std::int64_t p = 0; p < devices; ++p)
      adjoint::copy(tile, count, turned + p * tile * stride, stride, row(first) + p * size + top,
                    devices * size);
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
