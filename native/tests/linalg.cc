// The kernels of `lockstep.linalg`, called as XLA calls them: from several threads at once, on
// arguments that they share. What they compute is for `tests/linalg/test_kernels.py`. One file,
// since all kernels are called by the same threads on the same buffers.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "linalg/ffi.h"
#include "plain_lapack.h"

extern "C" lockstep::ffi::Error* lockstep_hemv(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_two_products(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_left(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_right(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_bidiagonal_values(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_block_reflector(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_band_to_bidiagonal(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_band_eigenvalues(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_reflector(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_correct(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_secular_roots(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_secular_weights(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_products(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_subtract_products(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_solve_right(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_gram(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_lu_of_difference(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_reflect(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_potrf(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_trsm(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_factor_panel(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_getrf(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_eliminate(lockstep::ffi::Frame*);

// What XLA keeps an error in; the tests keep its text.
struct lockstep::ffi::Error {
  std::string text;
};

namespace lockstep::testing::linalg {

using Kernel = ffi::Error* (*)(ffi::Frame*);
using Dims = std::vector<std::int64_t>;

struct Array {
  ffi::Type type;
  Dims dims;
  std::vector<double> bytes;  // of at least the array's size

  static Array of(Dims dims, std::vector<double> values) {
    return {ffi::Type::kF64, std::move(dims), std::move(values)};
  }
  static Array of(Dims dims, const std::vector<std::int32_t>& values) {
    Array array{ffi::Type::kS32, std::move(dims), std::vector<double>(values.size())};
    std::memcpy(array.bytes.data(), values.data(), values.size() * sizeof(std::int32_t));
    return array;
  }
  static Array rough(Dims dims) {
    std::int64_t size = 1;
    for (const std::int64_t n : dims) size *= n;
    std::vector<double> values(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i));
    return of(std::move(dims), std::move(values));
  }
};

ffi::Buffer view(const Array& array) {
  return {sizeof(ffi::Buffer),
          nullptr,
          array.type,
          const_cast<double*>(array.bytes.data()),
          static_cast<std::int64_t>(array.dims.size()),
          array.dims.data()};
}

struct Case {
  Kernel kernel;
  std::vector<Array> arguments;
  std::vector<Array> results;
  bool in_place = false;  // the result is that of the first argument
};

// Runs a kernel into `results`; returns the text of its error, or nothing.
std::string call(const Case& what, const std::vector<Array>& arguments,
                 std::vector<Array>& results) {
  ffi::Api api{};
  api.create_error = [](ffi::ErrorArgs* args) { return new ffi::Error{args->message}; };
  std::deque<ffi::Buffer> buffers;
  std::vector<ffi::Buffer*> in, out;
  const bool in_place = what.in_place && !arguments.empty();
  if (in_place) results[0] = arguments[0];
  for (const Array& array : arguments) in.push_back(&buffers.emplace_back(view(array)));
  if (in_place) in[0] = &buffers.emplace_back(view(results[0]));
  for (const Array& array : results) out.push_back(&buffers.emplace_back(view(array)));
  ffi::Frame frame{};
  frame.api = &api;
  frame.arguments.size = static_cast<std::int64_t>(in.size());
  frame.arguments.buffers = in.data();
  frame.results.size = static_cast<std::int64_t>(out.size());
  frame.results.buffers = out.data();
  ffi::Error* error = what.kernel(&frame);
  const std::string text = error == nullptr ? "" : error->text;
  delete error;
  return text;
}

Array well_conditioned(std::int64_t n) {
  Array square = Array::rough({n, n});
  for (std::int64_t i = 0; i < n; ++i) square.bytes[static_cast<std::size_t>(i * (n + 1))] += 100;
  return square;
}

// Three supersteps of two devices and seven columns each; poles in order, told apart.
std::vector<Case> cases() {
  const std::int64_t r = 21, w = 14, m = 37;
  const Array panel = Array::rough({w, 2, r}), slots = Array::rough({2, r});
  const Array place = Array::of({3}, std::vector<std::int32_t>{7, 1, 9});
  const Array last = Array::of({3}, std::vector<std::int32_t>{7, 2, 13});
  const Array columns = Array::rough({w + 1, 2, r}), twice = Array::rough({2 * w, 2, r});
  const Array both = Array::rough({2, 2, r}), square = Array::rough({w, w});
  std::vector<std::int32_t> order(m);
  std::vector<double> poles(m), small(m, 0.0), ones(m, 0.1), offsets(m, 0.3);
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::int32_t>(i);
    poles[i] = static_cast<double>(i);
  }
  const Array order_of = Array::of({1, m}, order), pole = Array::of({1, m}, poles);
  const Array second = Array::of({1, m}, small), z = Array::of({1, m}, ones);
  const Array rho = Array::of({1}, std::vector<double>{0.5});
  const Array first = Array::of({2}, std::vector<std::int32_t>{3, 0});
  const Array first_of_squares = Array::of({2}, std::vector<std::int32_t>{3, 1});
  // Blocks that fill their arrays. Two products share a factor, the others an adjoint one.
  const Array product = Array::rough({3, 2, 10}), block_rows = Array::rough({3, 1, 7});
  const Array block_columns = Array::rough({5, 2, 7});
  const Array blocks = Array::of({38}, std::vector<std::int32_t>{3, 5, 7, 3, 2, 2, 0, 1,        //
                                                                 0, 0, 0, 0, 0, 0, 5, 0, 1, 0,  //
                                                                 0, 0, 0, 0, 0, 0, 3, 0, 0, 0,  //
                                                                 0, 0, 0, 0, 0, 0, 3, 0, 1, 0});
  return {
      {lockstep_hemv,
       {Array::rough({r, 2, r}), slots, Array::of({3}, std::vector<std::int32_t>{7, 7, 1})},
       {slots}},
      {lockstep_two_products,
       {Array::rough({11, 600}), Array::rough({600}), Array::rough({11})},
       {Array::rough({11}), Array::rough({600}), Array::rough({})}},
      {lockstep_bidiagonal_left,
       {Array::rough({r, 2, r}), columns, panel, twice, twice,
        Array::of({4}, std::vector<std::int32_t>{7, 1, 3, 1})},
       {slots, slots, both, Array::rough({2})}},
      {lockstep_bidiagonal_right,
       {slots, both, columns, twice, twice, place},
       {slots, slots, Array::rough({2})}},
      {lockstep_bidiagonal_right,
       {slots, both, columns, twice, twice, last},
       {slots, slots, Array::rough({2})}},
      {lockstep_reflector, {panel, panel, panel, last}, {slots, Array::rough({3})}},
      {lockstep_bidiagonal_values, {Array::rough({9}), Array::rough({9})}, {Array::rough({9})}},
      {lockstep_block_reflector,
       {panel, Array::of({2}, std::vector<std::int32_t>{7, 1})},
       {panel, square, square}},
      {lockstep_block_reflector,  // one after the last superstep
       {panel, Array::of({2}, std::vector<std::int32_t>{7, 3})},
       {panel, square, square}},
      {lockstep_band_to_bidiagonal,
       {Array::rough({3, 2, 5, 5})},
       {Array::rough({15}), Array::rough({15})}},
      {lockstep_band_eigenvalues, {Array::rough({3, 2, 5, 5})}, {Array::rough({15})}},
      {lockstep_reflector, {panel, panel, panel, place}, {slots, Array::rough({3})}},
      {lockstep_correct, {slots, slots, panel, panel, Array::rough({}), place}, {slots}},
      {lockstep_secular_roots, {pole, second, z, rho, order_of, first}, {Array::rough({1, 30})}},
      {lockstep_secular_roots,
       {pole, second, z, rho, order_of, first_of_squares},
       {Array::rough({1, 30})}},
      {lockstep_secular_weights,
       {pole, second, z, rho, order_of, order_of, Array::of({1, m}, offsets), first},
       {Array::rough({1, 30})}},
      {lockstep_products, {block_rows, block_columns, blocks}, {product}},
      {lockstep_subtract_products, {product, block_rows, block_columns, blocks}, {product}, true},
      {lockstep_solve_right,
       {Array::rough({520, 70}), well_conditioned(70)},
       {Array::rough({520, 70})},
       true},
      {lockstep_trsm,
       {Array::rough({20, 9}), well_conditioned(20), Array::of({1}, std::vector<std::int32_t>{0})},
       {Array::rough({20, 9})},
       true},
      {lockstep_gram, {Array::rough({90, 70})}, {Array::rough({70, 70})}},
      {lockstep_reflect,
       {Array::rough({2, 9, 40}), Array::rough({2, 7, 5}), Array::rough({5, 5}),
        Array::rough({5, 30}), Array::of({2}, std::vector<std::int32_t>{2, 10})},
       {Array::rough({2, 9, 40})},
       true},
      {lockstep_lu_of_difference,
       {Array::rough({50, 50})},
       {Array::rough({50, 50}), Array::rough({50})},
       true},
      {lockstep_potrf, {well_conditioned(20)}, {well_conditioned(20)}, true},
      {lockstep_getrf,
       {Array::rough({w, 28}), Array::of({1}, std::vector<std::int32_t>{1})},
       {Array::rough({w, 28}), Array::of({w}, std::vector<std::int32_t>(w)),
        Array::of({28}, std::vector<std::int32_t>(28))},
       true},
      {lockstep_eliminate,
       {Array::rough({r, 2, r}), Array::rough({w, 28}),
        Array::of({w}, std::vector<std::int32_t>{3, 27, 9, 3, 20, 5, 6, 7, 8, 9, 10, 11, 14, 27}),
        Array::of({2}, std::vector<std::int32_t>{7, 1})},
       {Array::rough({r, 2, r})},
       true},
      {lockstep_factor_panel,
       {Array::rough({r, 2, r}), panel, well_conditioned(w),
        Array::of({2}, std::vector<std::int32_t>{7, 1})},
       {Array::rough({r, 2, r})},
       true}};
}

TEST(threads_that_share_arguments_get_the_same_bits) {
  use_plain_lapack();
  for (const Case& what : cases()) {
    std::vector<Array> wanted = what.results;
    CHECK_EQUAL(call(what, what.arguments, wanted), "");
    std::vector<std::vector<Array>> found(4, what.results);
    std::vector<std::string> errors(found.size());
    in_threads(found.size(),
               [&](std::size_t i) { errors[i] = call(what, what.arguments, found[i]); });
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK_EQUAL(errors[i], "");
      for (std::size_t k = 0; k < wanted.size(); ++k) CHECK(found[i][k].bytes == wanted[k].bytes);
    }
  }
}

Array factor_of(Array block) {
  std::vector<Array> found{block};
  CHECK_EQUAL(call({lockstep_potrf, {}, {}, true}, {block}, found), "");
  return found[0];
}

// What `lockstep_potrf` finds, by the plain factorization.
Array plain_factor(Array block) {
  const int n = static_cast<int>(block.dims[0]);
  int info = 0;
  plain_potrf("U", &n, block.bytes.data(), &n, &info);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      double& x = block.bytes[static_cast<std::size_t>(i * n + j)];
      x = j > i ? 0 : info != 0 ? std::nan("") : x;
    }
  return block;
}

bool same_bits(const Array& a, const Array& b) {
  return a.dims == b.dims &&
         std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size() * sizeof(double)) == 0;
}

// One thread's block may be another's latest, its own the one after next.
TEST(threads_with_several_blocks_get_the_factor_of_their_own) {
  use_plain_lapack();
  std::vector<Array> blocks, wanted;
  for (const std::int64_t n : {30, 30, 30, 7}) {
    Array& block = blocks.emplace_back(well_conditioned(n));
    block.bytes[0] += static_cast<double>(blocks.size());
  }
  blocks[2].bytes[31 * 2] = -1;  // it has none
  for (const Array& block : blocks) wanted.push_back(plain_factor(block));
  CHECK(std::isnan(wanted[2].bytes[31 * 29]) && wanted[2].bytes[29] == 0);
  std::atomic<int> wrong{0};
  in_threads(4, [&](std::size_t i) {
    for (std::size_t k = 0; k < 400; ++k) {
      const std::size_t which = (k / (i + 1)) % blocks.size();
      if (!same_bits(factor_of(blocks[which]), wanted[which])) ++wrong;
    }
  });
  CHECK_EQUAL(wrong.load(), 0);
}

// The block is large enough that all threads come while the first is at it.
TEST(threads_with_one_block_factor_it_once) {
  use_plain_lapack();
  Array block = well_conditioned(300);
  const Array wanted = plain_factor(block);
  factor_of(well_conditioned(2));
  factorizations = 0;
  std::atomic<int> wrong{0};
  in_threads(4, [&](std::size_t) { wrong += !same_bits(factor_of(block), wanted); });
  CHECK_EQUAL(wrong.load(), 0);
  CHECK_EQUAL(factorizations.load(), 1);
}

TEST(the_version_is_reported_with_and_without_an_api) {
  ffi::Metadata metadata{};
  ffi::MetadataExtension extension{{sizeof extension, ffi::kMetadata, nullptr}, &metadata};
  ffi::Frame frame{};
  frame.extensions = &extension.base;
  const auto minor_for = [&](const ffi::Api* api) {
    frame.api = api;
    metadata.version.minor = -1;
    CHECK(lockstep_hemv(&frame) == nullptr);
    return metadata.version.minor;
  };
  CHECK_EQUAL(minor_for(nullptr), ffi::kOldestMinor);  // as jaxlib 0.8.0 asks
  ffi::Api api{};
  for (const int theirs : {1, 2, 3, 9}) {
    api.version.minor = theirs;
    CHECK_EQUAL(minor_for(&api), std::min(theirs, ffi::kNewestMinor));
  }
}

TEST(arguments_that_do_not_fit_are_errors) {
  use_plain_lapack();
  for (const Case& what : cases()) {
    std::vector<Array> results = what.results;
    std::vector<Array> fewer = what.arguments, other = what.arguments;
    fewer.pop_back();
    CHECK_CONTAINS(call(what, fewer, results), "lockstep");
    other[other.size() > 2].dims.back() = 1;
    CHECK_CONTAINS(call(what, other, results), "lockstep");
  }
}

TEST(columns_outside_of_their_panels_are_errors) {
  use_plain_lapack();
  for (const Case& what : cases()) {
    const std::array all{lockstep_bidiagonal_left, lockstep_bidiagonal_right, lockstep_reflector,
                         lockstep_correct, lockstep_block_reflector};
    if (std::ranges::find(all, what.kernel) == all.end()) continue;
    for (std::size_t i = 0; i < static_cast<std::size_t>(what.arguments.back().dims[0]); ++i) {
      // Tiles of 5 do not fill 21 rows, and step 4 is two after the last.
      for (const std::int32_t wrong : {-1, 4, 5, 1 << 20}) {
        const bool is_step = what.kernel == lockstep_block_reflector && i == 1;
        if (wrong == 4 ? !is_step : wrong == 5 && i > 0) continue;
        std::vector<Array> arguments = what.arguments, results = what.results;
        reinterpret_cast<std::int32_t*>(arguments.back().bytes.data())[i] = wrong;
        CHECK_CONTAINS(call(what, arguments, results), "place do not fit");
      }
    }
  }
}

// The blocks fill their arrays: with another size, place or step they do not fit.
TEST(blocks_outside_of_their_arrays_are_errors) {
  use_plain_lapack();
  for (const Case& what : cases()) {
    if (what.kernel != lockstep_products && what.kernel != lockstep_subtract_products) continue;
    for (std::size_t i = 0; i < 38; ++i) {
      if (i == 6 || i == 7) continue;  // flags
      for (const std::int32_t wrong : {-1, 1 << 20}) {
        std::vector<Array> arguments = what.arguments, results = what.results;
        reinterpret_cast<std::int32_t*>(arguments.back().bytes.data())[i] = wrong;
        CHECK_CONTAINS(call(what, arguments, results), "product");
      }
    }
  }
}

// Seven of nine rows, and thirty of forty columns.
TEST(columns_outside_of_their_matrix_are_errors) {
  use_plain_lapack();
  for (const Case& what : cases()) {
    if (what.kernel != lockstep_reflect) continue;
    for (const auto& [place, wrong] :
         std::vector<std::array<int, 2>>{{0, -1}, {0, 3}, {1, -1}, {1, 11}, {1, 1 << 30}}) {
      std::vector<Array> arguments = what.arguments, results = what.results;
      reinterpret_cast<std::int32_t*>(arguments.back().bytes.data())[place] = wrong;
      CHECK_CONTAINS(call(what, arguments, results), "do not lie in their matrix");
    }
  }
}

// Three supersteps of seven columns; the panel is that of the second.
TEST(exchanges_outside_of_their_panel_are_errors) {
  use_plain_lapack();
  for (const Case& what : cases()) {
    if (what.kernel != lockstep_eliminate) continue;
    for (const auto& [argument, place, wrong] : std::vector<std::array<int, 3>>{
             {2, 0, -1}, {2, 13, 28}, {3, 0, 6}, {3, 0, -1}, {3, 1, 2}}) {
      std::vector<Array> arguments = what.arguments, results = what.results;
      Array& numbers = arguments[static_cast<std::size_t>(argument)];
      reinterpret_cast<std::int32_t*>(numbers.bytes.data())[place] = wrong;
      CHECK_CONTAINS(call(what, arguments, results), "does not lie in its matrix");
    }
  }
}

// Three supersteps of seven columns, and the factor's rows up to the second.
TEST(panels_outside_of_their_matrix_are_errors) {
  use_plain_lapack();
  const Case what = cases().back();
  CHECK(what.kernel == lockstep_factor_panel);
  const auto error_of = [&](std::size_t argument, const Array& other) {
    std::vector<Array> arguments = what.arguments, results = what.results;
    arguments[argument] = other;
    return call(what, arguments, results);
  };
  for (const std::vector<std::int32_t>& place :
       {std::vector<std::int32_t>{-1, 1}, {22, 1}, {15, 1}, {1 << 30, 1}, {7, -1}, {7, 2}})
    CHECK_CONTAINS(error_of(3, Array::of({2}, place)), "panel");
  CHECK_CONTAINS(error_of(1, Array::rough({15, 2, 21})), "panel");
  CHECK_CONTAINS(error_of(1, Array::rough({14, 3, 21})), "panel");
  CHECK_CONTAINS(error_of(1, Array::rough({14, 2, 6})), "panel");
  CHECK_CONTAINS(error_of(1, Array::rough({0, 2, 21})), "panel");
  CHECK_CONTAINS(error_of(2, well_conditioned(13)), "panel");
}

}  // namespace lockstep::testing::linalg
