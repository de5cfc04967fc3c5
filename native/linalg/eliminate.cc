// A superstep of LU (`lockstep/linalg/_lu.py`), in place: the exchanges of columns, the rows of the
// panel, and what the panel leaves to the rows below. XLA would copy the matrix for each of them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "linalg/adjoint.h"
#include "linalg/blas.h"
#include "linalg/ffi.h"
#include "linalg/triangle.h"

namespace lockstep {
namespace {

// What a superstep knows: a (size, devices, size), packed (width, devices * (size - top)).
template <typename T>
struct Superstep {
  T* a;
  const T* packed;
  const std::int32_t* swaps;
  std::int64_t size, devices, tile, top, me;

  std::int64_t width() const { return devices * tile; }
  std::int64_t end() const { return top + tile; }
  std::int64_t stride() const { return devices * size; }
  std::int64_t rest() const { return size - end(); }  // columns of each device right of the panel
  std::int64_t packed_stride() const { return devices * (size - top); }

  // Returns the place of column k of the panel in a row: those of the superstep come first.
  std::int64_t place(std::int64_t k) const {
    if (k < width()) return k / tile * size + top + k % tile;
    return (k - width()) / rest() * size + end() + (k - width()) % rest();
  }

  void run() const {
    exchange_columns();
    write_own_rows();
    if (rest() > 0) eliminate_rows_below();
  }

  void exchange_columns() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
    for (std::int64_t k = 0; k < width(); ++k)
      if (swaps[k] != k) pairs.emplace_back(place(k), place(swaps[k]));
    for (std::int64_t i = 0; i < size; ++i) {
      T *const row = a + i * stride(), *const next = row + (i + 1 < size ? stride() : 0);
      for (const auto& [x, y] : pairs) {
        // Places are scattered, so without this each exchange waits for the memory.
        __builtin_prefetch(next + y, 1, 2);
        std::swap(row[x], row[y]);
      }
    }
  }

  void write_own_rows() const {
    for (std::int64_t i = 0; i < tile; ++i) {
      T* const row = a + (top + i) * stride();
      const T* const from = packed + (me * tile + i) * packed_stride();
      for (std::int64_t p = 0; p < devices; ++p) {
        std::copy_n(from + p * tile, tile, row + p * size + top);
        std::copy_n(from + width() + p * rest(), rest(), row + p * size + end());
      }
    }
  }

  // The adjoint of what is below the panel's block is made, solved and multiplied, for the BLAS
  // packs the operand with the long side first faster, by columns.
  void eliminate_rows_below() const {
    constexpr std::int64_t kChunk = triangle::kChunk<T>;
    const std::int64_t count = size - end(), turned_stride = adjoint::stride_of(count);
    const auto memory =
        std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(width() * turned_stride));
    T* const turned = memory.get();
    const std::vector<T> lower = unit_lower();
    triangle::Solver<T> solver(lower.data(), width());
    for (std::int64_t at = 0; at < count; at += kChunk) {
      const std::int64_t chunk = std::min(kChunk, count - at);
      T* const rows = a + (end() + at) * stride();
      for (std::int64_t p = 0; p < devices; ++p)
        adjoint::copy(chunk, tile, rows + p * size + top, stride(),
                      turned + p * tile * turned_stride + at, turned_stride);
      solver.solve(turned + at, turned_stride, chunk);
      for (std::int64_t p = 0; p < devices; ++p)
        adjoint::copy(tile, chunk, turned + p * tile * turned_stride + at, turned_stride,
                      rows + p * size + top, stride());
    }
    for (std::int64_t p = 0; p < devices; ++p)
      blas::gemm<T>(count, rest(), width(), T(-1), {turned, turned_stride, true},
                    {packed + width() + p * rest(), packed_stride(), false}, T(1),
                    a + end() * stride() + p * size + end(), stride());
  }

  // The adjoint of the unit upper triangle of the panel's block.
  std::vector<T> unit_lower() const {
    std::vector<T> lower(static_cast<std::size_t>(width() * width()));
    for (std::int64_t i = 0; i < width(); ++i) {
      for (std::int64_t j = 0; j < i; ++j)
        lower[i * width() + j] = rows::conjugate(packed[j * packed_stride() + i]);
      lower[i * width() + i] = T(1);
    }
    return lower;
  }
};

bool fits(const ffi::Buffer& a, const ffi::Buffer& packed, const ffi::Buffer& swaps,
          const ffi::Buffer& words) {
  if (a.rank != 3 || packed.rank != 2 || packed.type != a.type || !words.is(ffi::Type::kS32, {2}))
    return false;
  const std::int64_t devices = a.dims[1], width = packed.dims[0], count = packed.dims[1];
  if (a.dims[0] != a.dims[2] || devices == 0 || width == 0 || width % devices != 0 ||
      !swaps.is(ffi::Type::kS32, {width}))
    return false;
  const std::int32_t *place = words.as<const std::int32_t>(), top = place[0], me = place[1];
  if (top < 0 || top + width / devices > a.dims[0] || me < 0 || me >= devices) return false;
  const auto is_column = [&](std::int32_t k) { return k >= 0 && k < count; };
  return count == devices * (a.dims[0] - top) &&
         std::all_of(swaps.as<const std::int32_t>(), swaps.as<const std::int32_t>() + width,
                     is_column);
}

}  // namespace
}  // namespace lockstep

// a (R, P, R), packed (W, m), s32 (W) exchanges, s32 (top, me) -> a, in place, after the superstep
// whose local rows start at `top`.
extern "C" lockstep::ffi::Error* lockstep_eliminate(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 4 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_eliminate: wanted are 4 arguments and 1 result.");
  const ffi::Buffer &a = frame->results[0], &packed = frame->arguments[1],
                    &swaps = frame->arguments[2];
  if (!frame->is_in_place())
    return ffi::error(*frame, "lockstep_eliminate: the result is not in place.");
  if (!fits(a, packed, swaps, frame->arguments[3]))
    return ffi::error(*frame, "lockstep_eliminate: the panel does not lie in its matrix.");
  const std::int32_t* place = frame->arguments[3].as<const std::int32_t>();
  return blas::for_type(a.type, *frame, [&]<typename T>(T) {
    const std::int64_t devices = a.dims[1], tile = packed.dims[0] / devices;
    Superstep<T>{a.as<T>(),
                 packed.as<const T>(),
                 swaps.as<const std::int32_t>(),
                 a.dims[0],
                 devices,
                 tile,
                 place[0],
                 place[1]}
        .run();
  });
}
