#include "model.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "check.h"

namespace lockstep::testing {
namespace {

constexpr std::size_t kGuard = 128;
constexpr std::byte kGuardByte{0xa5};

std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 15;
  x *= 0x85ebca77U;
  x ^= x >> 13;
  x *= 0xc2b2ae3dU;
  return x ^ (x >> 16);
}

std::uint32_t bits_of(const Case& what, int rank, std::size_t index) {
  return mixed(static_cast<std::uint32_t>(index) * 0x9e3779b1U ^
               (what.seed * 31 + static_cast<std::uint32_t>(rank) + 1) * 0x27d4eb2fU);
}

template <typename R>
R exact_float(std::uint32_t bits, Reduction reduction) {
  const int small = static_cast<int>(bits & 15) - 7;
  if (reduction != Reduction::kProduct) return static_cast<R>(small);
  return static_cast<R>((bits & 1 ? -1 : 1) * (bits & 2 ? 2 : 1));
}

template <typename R>
R rough_float(std::uint32_t bits) {
  const R scale = static_cast<R>(bits & 1 ? 1e-4 : 1) * static_cast<R>(bits & 2 ? 1e3 : 1);
  return static_cast<R>(static_cast<std::int32_t>(bits)) * scale;
}

template <typename T>
struct is_complex : std::false_type {};
template <typename R>
struct is_complex<std::complex<R>> : std::true_type {};

template <typename T>
T value(const Case& what, int rank, std::size_t index) {
  const std::uint32_t bits = bits_of(what, rank, index);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits * 0x100000001ULL ^ static_cast<std::uint64_t>(bits) << 29);
  } else if constexpr (is_complex<T>::value) {
    using R = typename T::value_type;
    return what.values == Values::kExact
               ? T(exact_float<R>(bits, what.reduction), exact_float<R>(bits >> 8, what.reduction))
               : T(rough_float<R>(bits), rough_float<R>(bits * 5));
  } else {
    return what.values == Values::kExact ? exact_float<T>(bits, what.reduction)
                                         : rough_float<T>(bits);
  }
}

template <typename T>
T combine(T a, T b, Reduction reduction) {
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    if (reduction == Reduction::kSum) return static_cast<T>(x + y);
    if (reduction == Reduction::kProduct) return static_cast<T>(x * y);
  } else {
    if (reduction == Reduction::kSum) return a + b;
    if (reduction == Reduction::kProduct) return a * b;
  }
  if constexpr (!is_complex<T>::value)
    return reduction == Reduction::kMin ? std::min(a, b) : std::max(a, b);
  return a;
}

// The C++ types of DType, in its order.
using Types = std::tuple<std::uint8_t, std::int8_t, std::int16_t, std::int32_t, std::int64_t,
                         std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t, float, double,
                         std::complex<float>, std::complex<double>>;

// Calls `body.operator()<T>()` with the C++ type of `dtype`.
template <typename Body>
void with_type(DType dtype, Body body) {
  const auto call = [&]<std::size_t kIndex>() {
    if (static_cast<std::size_t>(dtype) == kIndex)
      body.template operator()<std::tuple_element_t<kIndex, Types>>();
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (call.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<std::tuple_size_v<Types>>());
}

template <typename T>
void fill(std::byte* to, const Case& what, int rank, std::size_t first, std::size_t count) {
  auto* values = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < count; ++i) values[i] = value<T>(what, rank, first + i);
}

// Elements [first, first + count) of the reduction over all ranks.
template <typename T>
void fill_reduced(std::byte* to, const Case& what, int size, std::size_t first) {
  auto* values = reinterpret_cast<T*>(to);
  fill<T>(to, what, 0, first, what.count);
  for (int rank = 1; rank < size; ++rank)
    for (std::size_t i = 0; i < what.count; ++i)
      values[i] = combine(values[i], value<T>(what, rank, first + i), what.reduction);
}

std::size_t input_elements(const Case& what, int size) {
  const bool blocks = what.op == Op::kReduceScatter || what.op == Op::kAllToAll;
  return what.count * (blocks ? static_cast<std::size_t>(size) : 1);
}

std::size_t output_elements(const Case& what, int size) {
  const bool blocks = what.op == Op::kAllGather || what.op == Op::kAllToAll;
  return what.count * (blocks ? static_cast<std::size_t>(size) : 1);
}

void fill_input(Buffer& in, const Case& what, int rank, int size) {
  with_type(what.dtype,
            [&]<typename T>() { fill<T>(in.data(), what, rank, 0, input_elements(what, size)); });
}

void fill_expected(Buffer& out, const Case& what, int rank, int size) {
  const auto own = static_cast<std::size_t>(rank);
  with_type(what.dtype, [&]<typename T>() {
    if (what.op == Op::kAllReduce) return fill_reduced<T>(out.data(), what, size, 0);
    if (what.op == Op::kReduceScatter)
      return fill_reduced<T>(out.data(), what, size, own * what.count);
    for (int source = 0; source < size; ++source)
      fill<T>(out.data() + static_cast<std::size_t>(source) * what.count * sizeof(T), what, source,
              what.op == Op::kAllToAll ? own * what.count : 0, what.count);
  });
}

// XLA copies the block that a rank keeps, and asks for the others round by round.
void run_all_to_all(Communicator& end, const Case& what, std::byte* in, std::byte* out) {
  const std::size_t bytes = what.count * size_of(what.dtype);
  const auto block = [&](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  if (bytes != 0) std::memcpy(out + block(end.rank()), in + block(end.rank()), bytes);
  for (int i = 1; i < end.size(); ++i) {
    const int target = (end.rank() + i) % end.size();
    const int source = (end.rank() + end.size() - i) % end.size();
    end.send_receive(in + block(target), target, out + block(source), source, bytes);
  }
}

std::string text_of(const Case& what) {
  return std::string(name_of(what.op)) + " " + name_of(what.reduction) + " of " +
         std::to_string(what.count) + " x " + name_of(what.dtype) +
         (what.in_place ? ", in place" : "");
}

// Compares values and not bytes: zero has two signs, and which one a product gets depends on its
// order.
void check_equal(Buffer& got, Buffer& expected, DType dtype, const std::string& what) {
  with_type(dtype, [&]<typename T>() {
    const auto* a = reinterpret_cast<const T*>(got.data());
    const auto* b = reinterpret_cast<const T*>(expected.data());
    const std::size_t count = got.bytes() / sizeof(T);
    const auto at = static_cast<std::size_t>(std::mismatch(a, a + count, b).first - a);
    if (at != count)
      fail(__FILE__, __LINE__, what + ": wrong from element " + std::to_string(at) + " on");
  });
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : bytes_(bytes), memory_(bytes + 64 + 2 * kGuard, kGuardByte) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
  start_ = kGuard + (64 - address % 64) % 64;
}

void Buffer::check_guards() const {
  const auto intact = [](std::byte byte) { return byte == kGuardByte; };
  const auto payload = memory_.begin() + static_cast<std::ptrdiff_t>(start_);
  CHECK(std::all_of(memory_.begin(), payload, intact));
  CHECK(std::all_of(payload + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), intact));
}

std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) all.push_back(static_cast<DType>(i));
  return all;
}

std::vector<Reduction> reductions_of(Op op, DType dtype) {
  if (op != Op::kAllReduce && op != Op::kReduceScatter) return {Reduction::kNone};
  if (dtype == DType::kByte) return {};
  if (dtype == DType::kC64 || dtype == DType::kC128) return {Reduction::kSum, Reduction::kProduct};
  return {Reduction::kSum, Reduction::kProduct, Reduction::kMin, Reduction::kMax};
}

Call call_of(const Case& what, const void* in, void* out) {
  Call call;
  call.op = what.op;
  call.dtype = what.dtype;
  call.reduction = what.reduction;
  call.count = what.count;
  call.in = static_cast<const std::byte*>(in);
  call.out = static_cast<std::byte*>(out);
  return call;
}

Buffer run_case(Communicator& end, const Case& what) {
  const int rank = end.rank(), size = end.size();
  const std::size_t width = size_of(what.dtype);
  Buffer in(input_elements(what, size) * width);
  Buffer out(output_elements(what, size) * width);
  fill_input(in, what, rank, size);
  if (what.in_place) fill_input(out, what, rank, size);
  if (what.op == Op::kAllToAll) {
    run_all_to_all(end, what, in.data(), out.data());
  } else {
    end.run(call_of(what, what.in_place ? out.data() : in.data(), out.data()));
  }
  out.check_guards();
  in.check_guards();
  Buffer same(in.bytes());
  fill_input(same, what, rank, size);
  check_equal(in, same, what.dtype, text_of(what) + ", its input");
  if (what.values == Values::kRough) return out;
  Buffer expected(out.bytes());
  fill_expected(expected, what, rank, size);
  check_equal(out, expected, what.dtype, text_of(what));
  return out;
}

Buffer message(std::uint32_t seed, int rank, std::size_t bytes) {
  Buffer made(bytes);
  fill<std::uint8_t>(made.data(), {.seed = seed}, rank, 0, bytes);
  return made;
}

void run_permute(Communicator& end, const std::vector<Edge>& edges, std::size_t bytes,
                 std::uint32_t seed) {
  Buffer in = message(seed, end.rank(), bytes);
  Buffer out(bytes);
  std::vector<Request*> requests;
  int source = -1;
  for (const Edge& edge : edges) {
    if (edge.target == end.rank()) source = edge.source;
    if (edge.source == end.rank() && edge.target != end.rank())
      requests.push_back(end.send(edge.target, in.data(), bytes));
  }
  const bool receives = source >= 0 && source != end.rank();
  if (receives) requests.push_back(end.receive(source, out.data(), bytes));
  for (Request* request : requests) end.wait(request);
  out.check_guards();
  if (!receives) return;
  Buffer expected = message(seed, source, bytes);
  check_equal(out, expected, DType::kU8,
              "permute of " + std::to_string(bytes) + " bytes from rank " + std::to_string(source));
}

std::unique_ptr<Communicator> all_started(Rank& rank) {
  auto end = rank.all();
  run_case(*end, {.count = 10, .seed = 1});
  return end;
}

std::vector<Edge> ring(int size, int step) {
  std::vector<Edge> edges;
  for (int rank = 0; rank < size; ++rank) edges.push_back({rank, (rank + step) % size});
  return edges;
}

Case case_of(Op op, DType dtype, std::size_t count, std::uint32_t seed) {
  return {op, dtype, reductions_of(op, dtype)[0], count, seed};
}

void run_all(Communicator& end, DType dtype, std::size_t count, std::uint32_t seed) {
  for (const Op op : kOps) run_case(end, case_of(op, dtype, count, seed));
}

void run_all_and_permute(Communicator& end, std::size_t count) {
  const auto seed = static_cast<std::uint32_t>(count);
  run_all(end, DType::kF32, count, seed);
  const int next = 1 % end.size();
  run_permute(end, {{0, next}, {next, 0}}, count, seed);
}

}  // namespace lockstep::testing
