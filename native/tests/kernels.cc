// The kernels of `lockstep.linalg`, called as XLA calls them: from several threads at once, on
// arguments that they share. What they compute is for `tests/linalg/test_kernels.py`.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "linalg/ffi.h"

extern "C" lockstep::ffi::Error* lockstep_hemv(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_reflector(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_correct(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_secular_roots(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_secular_weights(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_products(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_subtract_products(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_solve_right(lockstep::ffi::Frame*);
extern "C" lockstep::ffi::Error* lockstep_factor_panel(lockstep::ffi::Frame*);
extern "C" void lockstep_use_gemm(void* const*);

// What XLA keeps an error in; the tests keep its text.
struct lockstep::ffi::Error {
  std::string text;
};

namespace lockstep::testing {
namespace {

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

// What Python hands over, for double: by columns, as in the reference BLAS.
void plain_gemm(const char* a_op, const char* b_op, const int* m, const int* n, const int* k,
                const double* alpha, const double* a, const int* a_stride, const double* b,
                const int* b_stride, const double* beta, double* c, const int* c_stride) {
  const auto at = [](const double* x, char op, int stride, int i, int j) {
    return op == 'N' ? x[i + j * stride] : x[j + i * stride];
  };
  for (int j = 0; j < *n; ++j)
    for (int i = 0; i < *m; ++i) {
      double sum = 0;
      for (int l = 0; l < *k; ++l)
        sum += at(a, *a_op, *a_stride, i, l) * at(b, *b_op, *b_stride, l, j);
      double& out = c[i + j * *c_stride];
      out = (*beta == 0 ? 0 : *beta * out) + *alpha * sum;
    }
}

void use_plain_gemm() {
  void* const functions[4] = {nullptr, reinterpret_cast<void*>(plain_gemm), nullptr, nullptr};
  lockstep_use_gemm(functions);
}

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
  if (what.in_place) results[0] = arguments[0];
  for (const Array& array : arguments) in.push_back(&buffers.emplace_back(view(array)));
  if (what.in_place) in[0] = &buffers.emplace_back(view(results[0]));
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
  std::vector<std::int32_t> order(m);
  std::vector<double> poles(m), small(m, 0.0), ones(m, 0.1), offsets(m, 0.3);
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::int32_t>(i);
    poles[i] = static_cast<double>(i);
  }
  const Array order_of = Array::of({1, m}, order), pole = Array::of({1, m}, poles);
  const Array second = Array::of({1, m}, small), z = Array::of({1, m}, ones);
  const Array rho = Array::of({1}, std::vector<double>{0.5});
  const Array first = Array::of({}, std::vector<std::int32_t>{3});
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
      {lockstep_reflector, {panel, panel, panel, place}, {slots, Array::rough({3})}},
      {lockstep_correct, {slots, slots, panel, panel, Array::rough({}), place}, {slots}},
      {lockstep_secular_roots, {pole, second, z, rho, order_of, first}, {Array::rough({1, 30})}},
      {lockstep_secular_weights,
       {pole, second, z, rho, order_of, order_of, Array::of({1, m}, offsets), first},
       {Array::rough({1, 30})}},
      {lockstep_products, {block_rows, block_columns, blocks}, {product}},
      {lockstep_subtract_products, {product, block_rows, block_columns, blocks}, {product}, true},
      {lockstep_solve_right,
       {Array::rough({300, 70}), well_conditioned(70)},
       {Array::rough({300, 70})},
       true},
      {lockstep_factor_panel,
       {Array::rough({r, 2, r}), panel, well_conditioned(w),
        Array::of({2}, std::vector<std::int32_t>{7, 1})},
       {Array::rough({r, 2, r})},
       true}};
}

TEST(threads_that_share_arguments_get_the_same_bits) {
  use_plain_gemm();
  for (const Case& what : cases()) {
    std::vector<Array> wanted = what.results;
    CHECK_EQUAL(call(what, what.arguments, wanted), "");
    std::vector<std::vector<Array>> found(4, what.results);
    std::vector<std::string> errors(found.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < found.size(); ++i) {
      threads.emplace_back([&, i] { errors[i] = call(what, what.arguments, found[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK_EQUAL(errors[i], "");
      for (std::size_t k = 0; k < wanted.size(); ++k) CHECK(found[i][k].bytes == wanted[k].bytes);
    }
  }
}

TEST(arguments_that_do_not_fit_are_errors) {
  use_plain_gemm();
  for (const Case& what : cases()) {
    std::vector<Array> results = what.results;
    std::vector<Array> fewer = what.arguments, other = what.arguments;
    fewer.pop_back();
    CHECK_CONTAINS(call(what, fewer, results), "lockstep");
    other[1].dims.back() = 1;
    CHECK_CONTAINS(call(what, other, results), "lockstep");
  }
}

// The blocks fill their arrays: with another size, place or step they do not fit.
TEST(blocks_outside_of_their_arrays_are_errors) {
  use_plain_gemm();
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

// Three supersteps of seven columns, and the factor's rows up to the second.
TEST(panels_outside_of_their_matrix_are_errors) {
  use_plain_gemm();
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

}  // namespace
}  // namespace lockstep::testing
