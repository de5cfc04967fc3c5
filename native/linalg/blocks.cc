// Products over blocks of a matrix in slots (`lockstep/linalg/_layout.py`), where they lie. XLA
// multiplies whole buffers only, so it copies what is left of a panel before each product.
#include <algorithm>
#include <array>
#include <cstdint>

#include "linalg/blas.h"
#include "linalg/ffi.h"

namespace lockstep {

blas::Routines blas::table[4] = {};
blas::OfValues blas::values = {};

namespace {

using Place = std::array<std::int64_t, 3>;

// Blocks (i, l) of an array of rank 3. Their columns are contiguous, their rows along `row_axis`.
struct View {
  Place start;  // of block (0, 0)
  std::int64_t row_axis;
  Place step_i, step_l;  // to the next block

  Place at(std::int64_t i, std::int64_t l) const {
    Place place = start;
    for (std::size_t axis = 0; axis < 3; ++axis) place[axis] += i * step_i[axis] + l * step_l[axis];
    return place;
  }
};
constexpr std::size_t kViewWords = 10;
constexpr std::size_t kWords = 8 + 3 * kViewWords;

// c_il from op(a_il) op(b_il), for all i and l; a step of nothing stays at the same block.
struct Product {
  std::int64_t rows, columns;  // of a block of c
  std::int64_t inner, taper;   // of the products with i = 0; by how much less with the next i
  std::int64_t count_i, count_l;
  bool a_adjoint, b_adjoint;
  View c, a, b;

  std::int64_t inner_of(std::int64_t i) const { return inner - i * taper; }
};

View view_of(const std::int32_t* w) {
  return {{w[0], w[1], w[2]}, w[3], {w[4], w[5], w[6]}, {w[7], w[8], w[9]}};
}

Product product_of(const std::int32_t* w) {
  const std::int32_t* views = w + 8;
  return {w[0],
          w[1],
          w[2],
          w[3],
          w[4],
          w[5],
          w[6] != 0,
          w[7] != 0,
          view_of(views),
          view_of(views + kViewWords),
          view_of(views + 2 * kViewWords)};
}

std::int64_t stride_of(const ffi::Buffer& array, std::int64_t axis) {
  return axis == 0 ? array.dims[1] * array.dims[2] : axis == 1 ? array.dims[2] : 1;
}

std::int64_t offset_of(const ffi::Buffer& array, const Place& place) {
  return (place[0] * array.dims[1] + place[1]) * array.dims[2] + place[2];
}

bool holds(const ffi::Buffer& array, const View& view, const Place& first, std::int64_t rows,
           std::int64_t columns) {
  if (array.rank != 3 || view.row_axis < 0 || view.row_axis > 1) return false;
  Place last = first;
  last[static_cast<std::size_t>(view.row_axis)] += rows - 1;
  last[2] += columns - 1;
  for (std::size_t axis = 0; axis < 3; ++axis)
    if (first[axis] < 0 || last[axis] >= array.dims[axis]) return false;
  return true;
}

// c <- beta c + alpha times the products, block by block.
template <typename T>
void multiply(const Product& p, T alpha, T beta, const ffi::Buffer& c, const ffi::Buffer& a,
              const ffi::Buffer& b) {
  for (std::int64_t i = 0; i < p.count_i; ++i)
    for (std::int64_t l = 0; l < p.count_l; ++l) {
      const blas::Operand<T> left{a.as<const T>() + offset_of(a, p.a.at(i, l)),
                                  stride_of(a, p.a.row_axis), p.a_adjoint};
      const blas::Operand<T> right{b.as<const T>() + offset_of(b, p.b.at(i, l)),
                                   stride_of(b, p.b.row_axis), p.b_adjoint};
      blas::gemm<T>(p.rows, p.columns, p.inner_of(i), alpha, left, right, beta,
                    c.as<T>() + offset_of(c, p.c.at(i, l)), stride_of(c, p.c.row_axis));
    }
}

// Places and sizes are linear in i and in l: where the outermost blocks fit, all do.
bool fits(const Product& p, const ffi::Buffer& c, const ffi::Buffer& a, const ffi::Buffer& b) {
  for (const std::int64_t i : {std::int64_t(0), p.count_i - 1})
    for (const std::int64_t l : {std::int64_t(0), p.count_l - 1}) {
      const auto [m, n, k] = std::array{p.rows, p.columns, p.inner_of(i)};
      if (k < 0 || !holds(c, p.c, p.c.at(i, l), m, n) ||
          !holds(a, p.a, p.a.at(i, l), p.a_adjoint ? k : m, p.a_adjoint ? m : k) ||
          !holds(b, p.b, p.b.at(i, l), p.b_adjoint ? n : k, p.b_adjoint ? k : n))
        return false;
    }
  return true;
}

// The last arguments are a, b and the words of a Product; c is what the products are written to.
ffi::Error* multiply(const ffi::Frame& frame, int alpha, int beta) {
  const ffi::Buffer &c = frame.results[0], &words = frame.arguments[frame.arguments.size - 1];
  const ffi::Buffer &a = frame.arguments[frame.arguments.size - 3],
                    &b = frame.arguments[frame.arguments.size - 2];
  if (!words.is(ffi::Type::kS32, {kWords}))
    return ffi::error(frame, "lockstep: products of blocks want the words that describe them.");
  const Product p = product_of(words.as<const std::int32_t>());
  const std::array sizes{p.rows, p.columns, p.count_i, p.count_l};
  if (std::ranges::min(sizes) < 0 || p.inner < 0)
    return ffi::error(frame, "lockstep: a product of blocks has a negative size.");
  if (std::ranges::min(sizes) == 0) return nullptr;
  if (a.type != c.type || b.type != c.type || !fits(p, c, a, b))
    return ffi::error(frame, "lockstep: blocks of a product do not lie in their arrays.");
  return blas::for_type(c.type, frame,
                        [&]<typename T>(T) { multiply<T>(p, T(alpha), T(beta), c, a, b); });
}

}  // namespace
}  // namespace lockstep

// gemm, herk, trsm, potrf and getrf, each for float, double and their complex types; then dbdsqr,
// dgbbrd, zgbbrd, dsbtrd, zhbtrd and dsterf.
extern "C" void lockstep_use_lapack(void* const* functions) {
  using namespace lockstep;
  blas::Turn::count();
  for (std::size_t i = 0; i < 4; ++i)
    blas::table[i] = {reinterpret_cast<blas::Gemm>(functions[i]),
                      reinterpret_cast<blas::Herk>(functions[4 + i]),
                      reinterpret_cast<blas::Trsm>(functions[8 + i]),
                      reinterpret_cast<blas::Potrf>(functions[12 + i]),
                      reinterpret_cast<blas::Getrf>(functions[16 + i])};
  blas::values = {reinterpret_cast<blas::Bdsqr>(functions[20]),
                  reinterpret_cast<blas::RealGbbrd>(functions[21]),
                  reinterpret_cast<blas::ComplexGbbrd>(functions[22]),
                  reinterpret_cast<blas::Hbtrd>(functions[23]),
                  reinterpret_cast<blas::Hbtrd>(functions[24]),
                  reinterpret_cast<blas::Sterf>(functions[25])};
}

// a, b of rank 3, s32 (the words of Product) -> c, of which blocks not named hold anything.
extern "C" lockstep::ffi::Error* lockstep_products(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 3 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_products: wanted are 3 arguments and 1 result.");
  return multiply(*frame, 1, 0);
}

// c, a, b of rank 3, s32 (the words of Product) -> c in place, less the products.
extern "C" lockstep::ffi::Error* lockstep_subtract_products(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 4 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_subtract_products: wanted are 4 arguments and 1 result.");
  if (!frame->is_in_place())
    return ffi::error(*frame, "lockstep_subtract_products: the result is not in place.");
  return multiply(*frame, -1, 1);
}
