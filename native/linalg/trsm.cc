// x <- l^-1 x or l^-H x for a lower triangle l: a block of rows of a sweep
// (`lockstep/linalg/_cholesky.py`). XLA calls the same BLAS, but transposes l and x for it.
#include <cstdint>

#include "linalg/blas.h"
#include "linalg/ffi.h"

// x (W, k), l (W, W), s32 (1) -> x in place; the adjoint of l is meant where the number is not 0.
extern "C" lockstep::ffi::Error* lockstep_trsm(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 3 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_trsm: wanted are 3 arguments and 1 result.");
  const ffi::Buffer &x = frame->results[0], &l = frame->arguments[1], &words = frame->arguments[2];
  if (!frame->is_in_place() || x.rank != 2 || !l.is(x.type, {x.dims[0], x.dims[0]}) ||
      !words.is(ffi::Type::kS32, {1}))
    return ffi::error(*frame, "lockstep_trsm: wanted is (W, k) in place, (W, W) and a number.");
  return blas::for_type(x.type, *frame, [&]<typename T>(T) {
    if (x.dims[0] == 0 || x.dims[1] == 0) return;
    const std::int64_t width = x.dims[0], columns = x.dims[1];
    const char* op = words.as<const std::int32_t>()[0] != 0 ? "C" : "N";
    blas::trsm<T>("R", op, columns, width, l.as<const T>(), width, x.as<T>(), columns);
  });
}
