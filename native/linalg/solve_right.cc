// x <- x l^-H for a lower triangle l: columns of an orthonormal basis, or rows of an inverse
// (`lockstep/linalg/_panel.py`, `lockstep/linalg/_inverse.py`).
#include <algorithm>
#include <cstdint>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/triangle.h"

namespace lockstep {
namespace {

// Rows solved at a time: those of a panel stay in the second-level cache.
constexpr std::int64_t kRows = 512;

// In place of x (rows x width), a block of columns at a time: products, and a solver for the blocks
// on the diagonal of l. Their inverses would do no more work, and lose digits where they are badly
// conditioned.
template <typename T>
void solve_right(T* x, std::int64_t rows, const T* l, std::int64_t width) {
  constexpr std::int64_t kBlock = triangle::kBlock;
  for (std::int64_t at = 0; at < rows; at += kRows) {
    const std::int64_t height = std::min(kRows, rows - at);
    T* own = x + at * width;
    for (std::int64_t k = 0; k < width; k += kBlock) {
      const std::int64_t size = std::min(kBlock, width - k);
      if (k > 0)
        blas::gemm<T>(height, size, k, T(-1), {own, width, false}, {l + k * width, width, true},
                      T(1), own + k, width);
      blas::trsm<T>("L", "C", size, height, l + k * width + k, width, own + k, width);
    }
  }
}

}  // namespace
}  // namespace lockstep

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
    solve_right(x.as<T>(), x.dims[0], l.as<const T>(), x.dims[1]);
  });
}
