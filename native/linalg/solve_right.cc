// x <- x l^-H for a lower triangle l: the rows of an inverse (`lockstep/linalg/_inverse.py`).
#include <algorithm>
#include <cstdint>
#include <memory>

#include "linalg/adjoint.h"
#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/triangle.h"

// x (m, W), l (W, W) -> x l^-H in place.
extern "C" lockstep::ffi::Error* lockstep_solve_right(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 2 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_solve_right: wanted are 2 arguments and 1 result.");
  const ffi::Buffer &x = frame->results[0], &l = frame->arguments[1];
  if (!frame->is_in_place() || x.rank != 2 || !l.is(x.type, {x.dims[1], x.dims[1]}))
    return ffi::error(*frame, "lockstep_solve_right: wanted is (m, W) in place, and (W, W).");
  return blas::for_type(x.type, *frame, [&]<typename T>(T) {
    const std::int64_t rows = x.dims[0], width = x.dims[1];
    triangle::Solver<T> solver(l.as<const T>(), width);
    constexpr std::int64_t kChunk = triangle::kChunk<T>;
    const std::int64_t stride = adjoint::stride_of(std::min(kChunk, rows));
    const auto turned =
        std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(width * stride));
    for (std::int64_t at = 0; at < rows; at += kChunk) {
      const std::int64_t chunk = std::min(kChunk, rows - at);
      T* own = x.as<T>() + at * width;
      adjoint::copy(chunk, width, own, width, turned.get(), stride);
      solver.solve(turned.get(), stride, chunk);
      adjoint::copy(width, chunk, turned.get(), stride, own, width);
    }
  });
}
