// Products over blocks of a matrix in slots (`lockstep/linalg/_layout.py`), where they lie. XLA
// multiplies whole buffers only, so it copies what is left of a panel before each product.
#include <algorithm>
#include <array>
#include <cstdint>

#include "linalg/blas.h"
#include "linalg/ffi.h"

namespace lockstep {

blas::Gemm blas::table[4] = {};

namespace {

// Blocks (i, l) of an array of rank 3, `rows` x `columns` elements each; columns are contiguous.
struct View {
  std::array<std::int64_t, 3> start;  // of block (0, 0)
  std::int64_t row_axis;
  std::array<std::int64_t, 2> axis, step;  // block (i, l): i step[0] on along axis[0], and so on
};
constexpr std::size_t kViewWords = 8;
constexpr std::size_t kWords = 7 + 3 * kViewWords;

// c_il -= op(a_il) op(b_il) for all i and l; a step of nothing stays at the same block.
struct Product {
  std::int64_t rows, columns, inner;  // of one block's product
  std::int64_t count_i, count_l;
  bool a_adjoint, b_adjoint;
  View c, a, b;

  std::array<std::int64_t, 5> sizes() const { return {rows, columns, inner, count_i, count_l}; }
};

View view_of(const std::int32_t* word) {
  return {{word[0], word[1], word[2]}, word[3], {word[4], word[6]}, {word[5], word[7]}};
}

Product product_of(const std::int32_t* word) {
  const std::int32_t* views = word + 7;
  return {word[0],
          word[1],
          word[2],
          word[3],
          word[4],
          word[5] != 0,
          word[6] != 0,
          view_of(views),
          view_of(views + kViewWords),
          view_of(views + 2 * kViewWords)};
}

std::int64_t stride_of(const ffi::Buffer& array, std::int64_t axis) {
  return axis == 0 ? array.dims[1] * array.dims[2] : axis == 1 ? array.dims[2] : 1;
}

std::int64_t offset_of(const ffi::Buffer& array, const View& view, std::int64_t i, std::int64_t l) {
  std::int64_t offset = 0;
  for (std::int64_t axis = 0; axis < 3; ++axis)
    offset += view.start[static_cast<std::size_t>(axis)] * stride_of(array, axis);
  return offset + i * view.step[0] * stride_of(array, view.axis[0]) +
         l * view.step[1] * stride_of(array, view.axis[1]);
}

// Whether all blocks lie inside of the array.
bool holds(const ffi::Buffer& array, const View& view, std::int64_t rows, std::int64_t columns,
           const Product& p) {
  if (array.rank != 3 || view.row_axis < 0 || view.row_axis > 1) return false;
  std::array<std::int64_t, 3> last = view.start;
  for (std::size_t k = 0; k < 2; ++k) {
    if (view.axis[k] < 0 || view.axis[k] > 2 || view.step[k] < 0) return false;
    last[static_cast<std::size_t>(view.axis[k])] +=
        ((k ? p.count_l : p.count_i) - 1) * view.step[k];
  }
  last[static_cast<std::size_t>(view.row_axis)] += rows - 1;
  last[2] += columns - 1;
  for (std::size_t axis = 0; axis < 3; ++axis)
    if (view.start[axis] < 0 || last[axis] >= array.dims[axis]) return false;
  return true;
}

template <typename T>
void subtract(const Product& p, const ffi::Buffer& c, const ffi::Buffer& a, const ffi::Buffer& b) {
  for (std::int64_t i = 0; i < p.count_i; ++i)
    for (std::int64_t l = 0; l < p.count_l; ++l) {
      const blas::Operand<T> left{a.as<const T>() + offset_of(a, p.a, i, l),
                                  stride_of(a, p.a.row_axis), p.a_adjoint};
      const blas::Operand<T> right{b.as<const T>() + offset_of(b, p.b, i, l),
                                   stride_of(b, p.b.row_axis), p.b_adjoint};
      blas::gemm<T>(p.rows, p.columns, p.inner, T(-1), left, right, T(1),
                    c.as<T>() + offset_of(c, p.c, i, l), stride_of(c, p.c.row_axis));
    }
}

bool fits(const Product& p, const ffi::Buffer& c, const ffi::Buffer& a, const ffi::Buffer& b) {
  const auto [m, n, k] = std::array{p.rows, p.columns, p.inner};
  return holds(c, p.c, m, n, p) && holds(a, p.a, p.a_adjoint ? k : m, p.a_adjoint ? m : k, p) &&
         holds(b, p.b, p.b_adjoint ? n : k, p.b_adjoint ? k : n, p);
}

}  // namespace
}  // namespace lockstep

extern "C" void lockstep_use_gemm(void* const* functions) {
  for (std::size_t i = 0; i < 4; ++i)
    lockstep::blas::table[i] = reinterpret_cast<lockstep::blas::Gemm>(functions[i]);
}

// c, a, b of rank 3, s32 (the words of Product) -> c in place, less the products.
extern "C" lockstep::ffi::Error* lockstep_subtract_products(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 4 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_subtract_products: wanted are 4 arguments and 1 result.");
  const ffi::Buffer &c = frame->results[0], &words = frame->arguments[3];
  if (!c.is_like(frame->arguments[0]) || c.data != frame->arguments[0].data ||
      !words.is(ffi::Type::kS32, {kWords}))
    return ffi::error(*frame, "lockstep_subtract_products: the result is not in place.");
  const Product p = product_of(words.as<const std::int32_t>());
  const ffi::Buffer &a = frame->arguments[1], &b = frame->arguments[2];
  for (const std::int64_t size : p.sizes())
    if (size < 0) return ffi::error(*frame, "lockstep_subtract_products: a size is negative.");
  if (std::ranges::count(p.sizes(), 0)) return nullptr;
  if (a.type != c.type || b.type != c.type || !fits(p, c, a, b))
    return ffi::error(*frame, "lockstep_subtract_products: blocks do not lie in their arrays.");
  return blas::for_type(c.type, *frame, [&]<typename T>(T) { subtract<T>(p, c, a, b); });
}
