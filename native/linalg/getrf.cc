// LU with partial pivoting of a panel that every device has (`lockstep/linalg/_lu.py`).
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/latest.h"

namespace lockstep {
namespace {

// LAPACK reads by columns, so for it the panel (rows x columns) is its transpose, and what it
// exchanges are columns of the panel. `numbers`: the exchanges, then each column's former number.
template <typename T>
void factor(T* panel, std::int64_t rows, std::int64_t columns, std::span<std::int32_t> numbers) {
  const int m = static_cast<int>(columns), n = static_cast<int>(rows);
  const auto swaps = numbers.first(static_cast<std::size_t>(std::min(m, n)));
  const auto permutation = numbers.subspan(swaps.size());
  int info = 0;  // a pivot of zero is for the caller to see
  blas::of<T>().getrf(&m, &n, panel, &m, swaps.data(), &info);
  std::iota(permutation.begin(), permutation.end(), 0);
  for (std::size_t k = 0; k < swaps.size(); ++k) {
    const auto other = static_cast<std::size_t>(--swaps[k]);
    std::swap(permutation[k], permutation[other]);
  }
}

}  // namespace
}  // namespace lockstep

// panel (W, m), s32 (1: whether devices of this process share it) -> its factors, in place, s32
// (min(W, m)) exchanges, s32 (m) former numbers of the columns.
extern "C" lockstep::ffi::Error* lockstep_getrf(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 2 || frame->results.size != 3)
    return ffi::error(*frame, "lockstep_getrf: wanted are 2 arguments and 3 results.");
  const ffi::Buffer &panel = frame->results[0], &swaps = frame->results[1],
                    &permutation = frame->results[2], &shared = frame->arguments[1];
  if (!frame->is_in_place() || panel.rank != 2 || panel.dims[0] == 0 || panel.dims[1] == 0)
    return ffi::error(*frame, "lockstep_getrf: wanted is (W, m) in place, not empty.");
  const std::int64_t rows = panel.dims[0], columns = panel.dims[1], size = std::min(rows, columns);
  if (!swaps.is(ffi::Type::kS32, {size}) || !permutation.is(ffi::Type::kS32, {columns}) ||
      !shared.is(ffi::Type::kS32, {1}))
    return ffi::error(*frame, "lockstep_getrf: the numbers have another shape than the panel.");
  return blas::for_type(panel.type, *frame, [&]<typename T>(T) {
    static auto& latest = *new Latest<T>;  // kernels may run while the process exits
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(size + columns));
    const auto find = [&] { factor(panel.as<T>(), rows, columns, numbers); };
    if (*shared.as<const std::int32_t>() != 0)
      latest.in_place({panel.as<T>(), static_cast<std::size_t>(rows * columns)}, numbers, find);
    else
      find();
    std::copy_n(numbers.begin(), size, swaps.as<std::int32_t>());
    std::copy_n(numbers.begin() + size, columns, permutation.as<std::int32_t>());
  });
}
