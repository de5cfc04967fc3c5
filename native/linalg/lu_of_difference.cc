// The factors from which Householder reflectors are rebuilt (`lockstep/linalg/_panel.py`): of a
// matrix less a diagonal one, whose elements are chosen one by one as the elimination goes.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/rows.h"

namespace lockstep {
namespace {

// Columns eliminated row by row, before one product changes what is right of them.
constexpr std::int64_t kBlock = 32;

// row (columns `from` to `end`) <- row - factor * other
template <typename T>
void leave(T* row, const T* other, T factor, std::int64_t from, std::int64_t end) {
  for (std::int64_t j = from; j < end; ++j) row[j] -= rows::times(factor, other[j]);
}

// a (n x n) by rows -> its unit lower and its upper factor, less the signs, which have modulus 1
// and the sign opposite to the pivot: no pivot is less than 1.
template <typename T>
void factor(T* a, T* signs, std::int64_t n) {
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t end = std::min(first + kBlock, n);
    for (std::int64_t k = first; k < end; ++k) {
      T* own = a + k * n;
      const auto size = std::abs(own[k]);
      signs[k] = size > 0 ? -own[k] / size : T(-1);
      own[k] -= signs[k];
      for (std::int64_t i = k + 1; i < n; ++i) {
        T* row = a + i * n;
        row[k] /= own[k];
        leave(row, own, row[k], k + 1, end);
      }
    }
    for (std::int64_t i = first + 1; i < end; ++i)
      for (std::int64_t k = first; k < i; ++k) leave(a + i * n, a + k * n, a[i * n + k], end, n);
    blas::gemm<T>(n - end, n - end, end - first, T(-1), {a + end * n + first, n, false},
                  {a + first * n + end, n, false}, T(1), a + end * n + end, n);
  }
}

}  // namespace
}  // namespace lockstep

// a (n, n) -> its factors in place, and the signs, (n,).
extern "C" lockstep::ffi::Error* lockstep_lu_of_difference(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 1 || frame->results.size != 2)
    return ffi::error(*frame, "lockstep_lu_of_difference: wanted are 1 argument and 2 results.");
  const ffi::Buffer &a = frame->results[0], &signs = frame->results[1];
  if (!frame->is_in_place() || a.rank != 2 || a.dims[0] != a.dims[1] ||
      !signs.is(a.type, {a.dims[0]}))
    return ffi::error(*frame, "lockstep_lu_of_difference: wanted are (n, n) in place, and (n).");
  return blas::for_type(a.type, *frame,
                        [&]<typename T>(T) { factor(a.as<T>(), signs.as<T>(), a.dims[0]); });
}
