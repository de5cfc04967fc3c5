// What the arithmetic promises beside exact results: equal bits everywhere, NaN, wrapping.
#include <cmath>
#include <complex>
#include <limits>

#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::numerics {

template <typename T>
std::vector<T> all_reduce(Communicator& end, DType dtype, Reduction reduction,
                          std::vector<T> values) {
  std::vector<T> result(values.size());
  end.run(call_of({Op::kAllReduce, dtype, reduction, values.size()}, values.data(), result.data()));
  return result;
}

void mix_rough(Rank& rank, Communicator& end, Case what) {
  what.values = Values::kRough;
  Buffer out = run_case(end, what);
  rank.mix(out.data(), out.bytes());
}

void reduce_rough_values(Rank& rank) {
  const auto end = rank.all();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kC64, DType::kC128})
    for (const Reduction reduction : {Reduction::kSum, Reduction::kProduct})
      for (const std::size_t count : {1, 33, 4096, 50'001}) {
        mix_rough(rank, *end, {Op::kAllReduce, dtype, reduction, count, 5});
      }
}

TEST(equal_bits_on_all_ranks_and_in_all_runs) {
  for (const Layout& layout : all_layouts()) {
    std::uint64_t first = 0;
    for (const Harness harness : {Harness::kThreads, Harness::kForked})
      for (const std::uint64_t digest :
           run_healthy(layout, {.harness = harness}, reduce_rough_values)) {
        if (first == 0) first = digest;
        CHECK_EQUAL(digest, first);
      }
  }
}

TEST(reduce_scatter_repeats_its_bits) {
  const auto body = [](Rank& rank) {
    const auto end = rank.all();
    for (const std::size_t count : {7, 20'001})
      mix_rough(rank, *end, {Op::kReduceScatter, DType::kF32, Reduction::kSum, count, 5});
  };
  for (const Layout& layout : all_layouts())
    CHECK(run_healthy(layout, {}, body) ==
          run_healthy(layout, {.harness = Harness::kForked}, body));
}

// Element r of the input of rank r is NaN: wherever it comes from, it stays.
template <typename T>
void check_nan(Communicator& end, DType dtype) {
  const auto size = static_cast<std::size_t>(end.size());
  for (const Reduction reduction :
       {Reduction::kMin, Reduction::kMax, Reduction::kSum, Reduction::kProduct}) {
    std::vector<T> values(size + 40, static_cast<T>(end.rank() + 1));
    values[static_cast<std::size_t>(end.rank())] = std::numeric_limits<T>::quiet_NaN();
    const auto result = all_reduce(end, dtype, reduction, values);
    for (std::size_t i = 0; i < result.size(); ++i) CHECK_EQUAL(std::isnan(result[i]), i < size);
    if (reduction == Reduction::kMin) CHECK_EQUAL(result[size], T{1});
    if (reduction == Reduction::kMax) CHECK_EQUAL(result[size], static_cast<T>(end.size()));
  }
}

TEST(nan_is_never_lost) {
  for (const Layout& layout : all_layouts())
    run_healthy(layout, {}, [](Rank& rank) {
      const auto end = rank.all();
      check_nan<float>(*end, DType::kF32);
      check_nan<double>(*end, DType::kF64);
    });
}

TEST(infinities) {
  run_healthy(layout("2x2"), {}, [](Rank& rank) {
    const auto end = rank.all();
    const double infinity = std::numeric_limits<double>::infinity();
    const std::vector<double> values = {infinity, rank.index % 2 ? infinity : -infinity, -infinity};
    CHECK(std::isinf(all_reduce(*end, DType::kF64, Reduction::kSum, values)[0]));
    CHECK(std::isnan(all_reduce(*end, DType::kF64, Reduction::kSum, values)[1]));
    CHECK_EQUAL(all_reduce(*end, DType::kF64, Reduction::kMin, values)[1], -infinity);
    CHECK_EQUAL(all_reduce(*end, DType::kF64, Reduction::kMax, values)[1], infinity);
  });
}

template <typename T>
void check_wrap(Communicator& end, DType dtype) {
  constexpr T kMax = std::numeric_limits<T>::max(), kMin = std::numeric_limits<T>::min();
  const std::vector<T> one_more = {end.rank() == 0 ? kMax : T{1}};
  CHECK_EQUAL(+all_reduce(end, dtype, Reduction::kSum, one_more)[0], +kMin);
  const std::vector<T> squared = {kMax};  // (2^k - 1)^2 = 1 modulo 2^k, and so for both signs
  CHECK_EQUAL(+all_reduce(end, dtype, Reduction::kProduct, squared)[0], 1);
}

TEST(integers_wrap) {
  run_healthy(layout("2x1"), {}, [](Rank& rank) {
    const auto end = rank.all();
    check_wrap<std::int8_t>(*end, DType::kI8);
    check_wrap<std::int16_t>(*end, DType::kI16);
    check_wrap<std::int32_t>(*end, DType::kI32);
    check_wrap<std::int64_t>(*end, DType::kI64);
    check_wrap<std::uint8_t>(*end, DType::kU8);
    check_wrap<std::uint16_t>(*end, DType::kU16);
    check_wrap<std::uint32_t>(*end, DType::kU32);
    check_wrap<std::uint64_t>(*end, DType::kU64);
  });
}

TEST(complex_product_is_the_product_of_complex_numbers) {
  run_healthy(layout("3x2"), {}, [](Rank& rank) {
    const auto end = rank.all();
    using C = std::complex<double>;
    C expected = 1;
    for (int i = 0; i < rank.size(); ++i) expected *= C(i + 1, i % 2 ? -2 : 3);
    const std::vector<C> own = {C(rank.index + 1, rank.index % 2 ? -2 : 3)};
    CHECK_EQUAL(all_reduce(*end, DType::kC128, Reduction::kProduct, own)[0], expected);
  });
}

}  // namespace lockstep::testing::numerics
