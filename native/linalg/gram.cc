// The Gram matrix of tall columns (`lockstep/linalg/_panel.py`), of which half is made of products.
#include <algorithm>
#include <cstdint>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/rows.h"

namespace lockstep {
namespace {

// Rows at a time: BLAS counts them in 32 bits.
constexpr std::int64_t kRows = 1 << 24;

// gram (W x W) = x^H x, for x (rows x W) by rows. BLAS goes by columns: it sees the transpose of x,
// and writes the upper triangle of the transpose of the result.
template <typename T>
void multiply(const T* x, std::int64_t rows, std::int64_t width, T* gram) {
  const int size = static_cast<int>(width);
  const rows::Real<T> one = 1;
  rows::Real<T> before = 0;
  for (std::int64_t at = 0; at == 0 || at < rows; at += kRows) {
    const int inner = static_cast<int>(std::min(kRows, rows - at));
    blas::of<T>().herk("U", "N", &size, &inner, &one, x + at * width, &size, &before, gram, &size);
    before = 1;
  }
  for (std::int64_t i = 0; i < width; ++i)
    for (std::int64_t j = 0; j < i; ++j) gram[j * width + i] = rows::conjugate(gram[i * width + j]);
}

}  // namespace
}  // namespace lockstep

// x (m, W) -> x^H x, (W, W).
extern "C" lockstep::ffi::Error* lockstep_gram(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 1 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_gram: wanted are 1 argument and 1 result.");
  const ffi::Buffer &x = frame->arguments[0], &gram = frame->results[0];
  if (x.rank != 2 || !gram.is(x.type, {x.dims[1], x.dims[1]}))
    return ffi::error(*frame, "lockstep_gram: wanted are (m, W) and (W, W).");
  if (x.dims[1] == 0) return nullptr;
  return blas::for_type(x.type, *frame, [&]<typename T>(T) {
    multiply(x.as<const T>(), x.dims[0], x.dims[1], gram.as<T>());
  });
}
