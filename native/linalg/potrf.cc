// The Cholesky factor of a block that every device has (`lockstep/linalg/_cholesky.py`). Devices of
// one process share its cores: one of them finds the factor, the others take it.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/latest.h"

namespace lockstep {
namespace {

// Factorizes a by rows, in its lower triangle: the upper one of its transpose, as LAPACK sees it.
// Writes zero above it, and NaN into it if there is no factor.
template <typename T>
void factor(T* a, std::int64_t size) {
  const int order = static_cast<int>(size);
  int info = 0;
  T none(std::numeric_limits<double>::quiet_NaN());
  if constexpr (!std::is_floating_point_v<T>) none = T(none.real(), none.real());
  blas::of<T>().potrf("U", &order, a, &order, &info);
  for (std::int64_t i = 0; i < size; ++i) {
    T* row = a + i * size;
    if (info != 0) std::fill(row, row + i + 1, none);
    std::fill(row + i + 1, row + size, T(0));
  }
}

}  // namespace
}  // namespace lockstep

// a (W, W) -> its lower factor, in place.
extern "C" lockstep::ffi::Error* lockstep_potrf(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 1 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_potrf: wanted are 1 argument and 1 result.");
  const ffi::Buffer& a = frame->results[0];
  if (!frame->is_in_place() || a.rank != 2 || a.dims[0] != a.dims[1])
    return ffi::error(*frame, "lockstep_potrf: wanted is (W, W) in place.");
  return blas::for_type(a.type, *frame, [&]<typename T>(T) {
    static auto& latest = *new Latest<T>;  // kernels may run while the process exits
    const auto size = static_cast<std::size_t>(a.dims[0]);
    if (size > 0)
      latest.in_place({a.as<T>(), size * size}, {}, [&] { factor(a.as<T>(), a.dims[0]); });
  });
}
