// x <- x l^-H for a lower triangle l: what is below the diagonal block of a panel of Cholesky's
// (`lockstep/linalg/_cholesky.py`), and the rows of an inverse (`_inverse.py`). By products with
// the inverses of small blocks of the diagonal: many times the rate of a solver, and as accurate as
// those blocks are well conditioned.
#include <algorithm>
#include <complex>
#include <cstdint>
#include <vector>

#include "linalg/blas.h"
#include "linalg/ffi.h"

namespace lockstep {
namespace {

// Columns of a block. Its inverse costs a third of its cube, at the rate of plain loops.
constexpr std::int64_t kBlock = 64;
// Rows solved at a time: with a block's columns they stay in the second-level cache.
constexpr std::int64_t kChunk = 256;

// The inverse of a lower triangle, by rows; zero above the diagonal.
template <typename T>
void invert(const T* l, std::int64_t stride, std::int64_t size, T* inverse) {
  std::fill(inverse, inverse + kBlock * kBlock, T(0));
  for (std::int64_t i = 0; i < size; ++i) {
    T* row = inverse + i * kBlock;
    for (std::int64_t k = 0; k < i; ++k) {
      const T factor = l[i * stride + k];
      const T* other = inverse + k * kBlock;
      for (std::int64_t j = 0; j <= k; ++j) row[j] -= factor * other[j];
    }
    const T pivot = T(1) / l[i * stride + i];
    for (std::int64_t j = 0; j < i; ++j) row[j] *= pivot;
    row[i] = pivot;
  }
}

// The inverses of all blocks on the diagonal of l (width x width), and space for one product.
template <typename T>
struct Solver {
  const T* l;
  std::int64_t width;
  std::vector<T> inverses, product;

  Solver(const T* factor, std::int64_t size) : l(factor), width(size), product(kChunk * kBlock) {
    for (std::int64_t at = 0; at < width; at += kBlock) {
      inverses.resize(inverses.size() + kBlock * kBlock);
      invert(l + at * width + at, width, std::min(kBlock, width - at), &inverses[at * kBlock]);
    }
  }

  // Columns `first` to `end` of x (rows x width), which lack nothing but their own triangle.
  void solve(T* x, std::int64_t rows, std::int64_t first, std::int64_t end) {
    const std::int64_t size = end - first;
    if (size <= kBlock) {
      blas::gemm<T>(rows, size, size, T(1), {x + first, width, false},
                    {&inverses[first * kBlock], kBlock, true}, T(0), product.data(), kBlock);
      for (std::int64_t i = 0; i < rows; ++i)
        std::copy_n(&product[i * kBlock], size, x + i * width + first);
      return;
    }
    const std::int64_t middle = first + (size / kBlock + 1) / 2 * kBlock;
    solve(x, rows, first, middle);
    blas::gemm<T>(rows, end - middle, middle - first, T(-1), {x + first, width, false},
                  {l + middle * width + first, width, true}, T(1), x + middle, width);
    solve(x, rows, middle, end);
  }
};

// x (rows x width) <- x l^-H.
template <typename T>
void solve(T* x, std::int64_t rows, const T* l, std::int64_t width) {
  Solver<T> solver(l, width);
  for (std::int64_t at = 0; at < rows; at += kChunk)
    solver.solve(x + at * width, std::min(kChunk, rows - at), 0, width);
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
  if (!x.is_like(frame->arguments[0]) || x.data != frame->arguments[0].data || x.rank != 2 ||
      !l.is(x.type, {x.dims[1], x.dims[1]}))
    return ffi::error(*frame, "lockstep_solve_right: wanted is (m, W) in place, and (W, W).");
  return blas::for_type(x.type, *frame, [&]<typename T>(T) {
    solve(x.as<T>(), x.dims[0], l.as<const T>(), x.dims[1]);
  });
}
