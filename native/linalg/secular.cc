// Roots of the secular equation, and the weights of which computed roots are the exact ones: the
// two searches of a merge of the divide and conquer (`lockstep/linalg/_divide_and_conquer.py`,
// which says what the two words of a pole are for).
//
// All arrays come in blocks: (B, m). Poles are in any order; `ascending[i]` is the index of the
// i-th smallest, `ranks` its inverse. Everything is computed in double precision.
//
// The poles are those numbers or, for singular values, their squares: then distances and offsets
// are of squares, and a distance is the product of a difference and a sum, without rounding's loss.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "linalg/ffi.h"
#include "linalg/rows.h"

namespace lockstep {
namespace {

using Four = rows::Vector<double>;
constexpr std::size_t kFour = 4;

LOCKSTEP_INLINE const Four& load(const double* x) { return *reinterpret_cast<const Four*>(x); }

// The distance of a pole from another one, each of two words.
template <bool kSquares, typename V>
LOCKSTEP_INLINE V apart(const V& pole, const V& small, double other, double other_small) {
  const V difference = (pole - other) + (small - other_small);
  if constexpr (kSquares) return difference * ((pole + other) + (small + other_small));
  return difference;
}

// One block, ascending: poles and their second words, and rho z^2.
struct Poles {
  const double *pole, *small, *weight;
  std::size_t count;
};

// Sums over some poles of weight / (pole - x), and of its derivative.
struct Sums {
  double value = 0, slope = 0;
};

// x is `side` times `distance` from the anchor; so are the poles, once measured from there.
template <bool kSquares>
LOCKSTEP_INLINE Sums sum(const Poles& poles, std::size_t first, std::size_t end, double pole,
                         double small, double side, double distance) {
  const Four zero{};
  Four value = zero, slope = zero;
  std::size_t i = first;
  for (; i + kFour <= end; i += kFour) {
    const Four gap = apart<kSquares>(load(poles.pole + i), load(poles.small + i), pole, small);
    const Four inverse = 1.0 / (side * gap - distance);
    const Four term = load(poles.weight + i) * inverse;
    value += term;
    slope += term * inverse;
  }
  Sums found{(value[0] + value[1]) + (value[2] + value[3]),
             (slope[0] + slope[1]) + (slope[2] + slope[3])};
  for (; i < end; ++i) {
    const double gap = apart<kSquares>(poles.pole[i], poles.small[i], pole, small);
    const double inverse = 1.0 / (side * gap - distance);
    found.value += poles.weight[i] * inverse;
    found.slope += poles.weight[i] * inverse * inverse;
  }
  return found;
}

// The equation as a function of the distance d from the anchor, on its one side: it rises from
// minus infinity at 0. `behind` are the poles at and behind the anchor, `ahead` the others.
struct Secular {
  Sums behind, ahead;
  double side;

  double value() const { return side + behind.value + ahead.value; }
  double size() const { return 1 + std::abs(behind.value) + std::abs(ahead.value); }
};

template <bool kSquares>
LOCKSTEP_INLINE Secular at(const Poles& poles, std::size_t anchor, double side, double distance) {
  const double pole = poles.pole[anchor], small = poles.small[anchor];
  const std::size_t middle = side > 0 ? anchor + 1 : anchor;
  const Sums low = sum<kSquares>(poles, 0, middle, pole, small, side, distance);
  const Sums high = sum<kSquares>(poles, middle, poles.count, pole, small, side, distance);
  return side > 0 ? Secular{low, high, side} : Secular{high, low, side};
}

// The next guess from `d`: the poles behind act as one at 0, those ahead as one at `gap`, with
// values and slopes as they are at d (the "middle way" of Li, LAPACK working note 89).
double guess(const Secular& f, double d, double gap) {
  const double behind = d * d * f.behind.slope;
  const double rest = f.side + f.behind.value + d * f.behind.slope;
  if (gap <= 0) return rest > 0 ? behind / rest : -1;  // nothing is ahead of the last root
  const double left = gap - d, ahead = left * left * f.ahead.slope;
  const double level = rest + f.ahead.value - left * f.ahead.slope;
  // level d^2 - b d + behind gap = 0.
  const double b = level * gap + behind + ahead, difference = level * gap - behind + ahead;
  const double root = std::sqrt(difference * difference + 4 * behind * ahead);
  return b > 0 ? 2 * behind * gap / (b + root) : (b - root) / (2 * level);
}

double halfway(double low, double high) {
  const auto a = std::bit_cast<std::uint64_t>(low), b = std::bit_cast<std::uint64_t>(high);
  return std::bit_cast<double>(a + (b - a) / 2);
}

// The distance of the root from the anchor, in (0, upper]: `f` is the equation at `upper`.
template <bool kSquares>
LOCKSTEP_INLINE double solve(const Poles& poles, std::size_t anchor, double side, double upper,
                             double gap, Secular f) {
  constexpr double kEps = 2.220446049250313e-16;
  constexpr int kTrusted = 12;  // guesses before bisection takes its turns
  double low = 2.2250738585072014e-308, high = upper, d = upper;
  for (int i = 0; i < 200; ++i) {
    const double value = f.value();
    if (std::abs(value) <= 2 * kEps * f.size()) return d;
    (value < 0 ? low : high) = d;
    if (std::bit_cast<std::uint64_t>(high) - std::bit_cast<std::uint64_t>(low) <= 1) return low;
    d = guess(f, d, gap);
    if (!(d > low && d < high) || (i >= kTrusted && i % 2 == 1)) d = halfway(low, high);
    f = at<kSquares>(poles, anchor, side, d);
  }
  return d;
}

template <bool kSquares>
LOCKSTEP_INLINE double root(const Poles& poles, std::size_t k, double reach) {
  const bool is_last = k + 1 == poles.count;
  double gap = 0, upper = reach;
  if (!is_last) {
    gap = apart<kSquares>(poles.pole[k + 1], poles.small[k + 1], poles.pole[k], poles.small[k]);
    upper = gap / 2;
  }
  const Secular f = at<kSquares>(poles, k, 1, upper);
  if (is_last || f.value() >= 0) return solve<kSquares>(poles, k, 1, upper, gap, f);
  return -solve<kSquares>(poles, k + 1, -1, upper, gap, at<kSquares>(poles, k + 1, -1, upper));
}

struct Blocks {
  std::size_t blocks, size, first, count;
  bool squares;
};

template <typename T, bool kSquares>
LOCKSTEP_INLINE void roots(const ffi::Frame& frame, const Blocks& shape) {
  const auto& in = frame.arguments;
  std::vector<double> pole(shape.size), small(shape.size), weight(shape.size);
  const Poles poles{pole.data(), small.data(), weight.data(), shape.size};
  auto* out = frame.results[0].as<T>();
  for (std::size_t b = 0; b < shape.blocks; ++b) {
    const std::size_t at = b * shape.size;
    const double rho = in[3].as<const T>()[b];
    double reach = 0;
    for (std::size_t i = 0; i < shape.size; ++i) {
      const auto from = at + static_cast<std::size_t>(in[4].as<const std::int32_t>()[at + i]);
      const double z = in[2].as<const T>()[from];
      pole[i] = in[0].as<const T>()[from];
      small[i] = in[1].as<const T>()[from];
      weight[i] = rho * z * z;
      reach += weight[i];
    }
    for (std::size_t k = 0; k < shape.count; ++k) {
      out[b * shape.count + k] =
          static_cast<T>(root<kSquares>(poles, shape.first + k, reach * 1.0001));
    }
  }
}

// One block, ascending: poles, and roots as offsets from the nearer pole.
struct Found {
  std::vector<double> pole, small, base, base_small, offset;

  explicit Found(std::size_t m) : pole(m), small(m), base(m), base_small(m), offset(m) {}
};

// The product over the roots `first` ... `end` - 1 of their distance from the pole (p, s), over
// that of the pole `shift` places after them.
template <bool kSquares>
LOCKSTEP_INLINE double quotients(const Found& found, std::size_t first, std::size_t end,
                                 std::size_t shift, double p, double s) {
  const double *pole = found.pole.data() + shift, *small = found.small.data() + shift;
  const double *base = found.base.data(), *base_small = found.base_small.data();
  const double* offset = found.offset.data();
  const Four zero{};
  Four four = zero + 1.0;
  std::size_t i = first;
  for (; i + kFour <= end; i += kFour) {
    const Four near = apart<kSquares>(load(base + i), load(base_small + i), p, s);
    four *= (near + load(offset + i)) / apart<kSquares>(load(pole + i), load(small + i), p, s);
  }
  double all = (four[0] * four[1]) * (four[2] * four[3]);
  for (; i < end; ++i) {
    const double near = apart<kSquares>(base[i], base_small[i], p, s);
    all *= (near + offset[i]) / apart<kSquares>(pole[i], small[i], p, s);
  }
  return all;
}

template <typename T, bool kSquares>
LOCKSTEP_INLINE void weights(const ffi::Frame& frame, const Blocks& shape) {
  const auto& in = frame.arguments;
  const std::size_t m = shape.size;
  Found found(m);
  auto* out = frame.results[0].as<T>();
  for (std::size_t b = 0; b < shape.blocks; ++b) {
    const std::size_t at = b * m;
    const auto* pole = in[0].as<const T>() + at;
    const auto* small = in[1].as<const T>() + at;
    const auto* ascending = in[4].as<const std::int32_t>() + at;
    for (std::size_t i = 0; i < m; ++i) {
      found.pole[i] = pole[ascending[i]];
      found.small[i] = small[ascending[i]];
      found.offset[i] = in[6].as<const T>()[at + i];
      const std::size_t anchor = found.offset[i] > 0 ? i : std::min(i + 1, m - 1);
      found.base[i] = pole[ascending[anchor]];
      found.base_small[i] = small[ascending[anchor]];
    }
    for (std::size_t k = 0; k < shape.count; ++k) {
      const std::size_t j = shape.first + k;
      const auto rank = static_cast<std::size_t>(in[5].as<const std::int32_t>()[at + j]);
      const double p = pole[j], s = small[j], z = in[2].as<const T>()[at + j];
      // Each root is paired with the pole on its far side, so that every quotient is below one.
      const double last = apart<kSquares>(found.base[m - 1], found.base_small[m - 1], p, s);
      const double all = quotients<kSquares>(found, 0, rank, 0, p, s) *
                         quotients<kSquares>(found, rank, m - 1, 1, p, s) *
                         (last + found.offset[m - 1]);
      const double size = std::sqrt(std::max(all, 0.0) / in[3].as<const T>()[b]);
      out[b * shape.count + k] = static_cast<T>(z < 0 ? -size : size);
    }
  }
}

#define LOCKSTEP_TYPE(NAME, ...) \
  LOCKSTEP_VARIANTS(NAME, (const ffi::Frame& f, const Blocks& s), (f, s), (__VA_ARGS__(f, s)))
LOCKSTEP_TYPE(roots_f32, roots<float, false>)
LOCKSTEP_TYPE(roots_f64, roots<double, false>)
LOCKSTEP_TYPE(weights_f32, weights<float, false>)
LOCKSTEP_TYPE(weights_f64, weights<double, false>)
LOCKSTEP_TYPE(squares_roots_f32, roots<float, true>)
LOCKSTEP_TYPE(squares_roots_f64, roots<double, true>)
LOCKSTEP_TYPE(squares_weights_f32, weights<float, true>)
LOCKSTEP_TYPE(squares_weights_f64, weights<double, true>)

// Checks what both calls begin with; `more` arguments follow the five.
bool read_blocks(const ffi::Frame& frame, std::int64_t more, Blocks& shape) {
  const auto& in = frame.arguments;
  const auto& out = frame.results;
  if (in.size != 6 + more || out.size != 1 || in[0].rank != 2 || out[0].rank != 2) return false;
  const ffi::Type type = in[0].type;
  const std::int64_t blocks = in[0].dims[0], size = in[0].dims[1], count = out[0].dims[1];
  const ffi::Buffer& words = in[static_cast<std::size_t>(5 + more)];
  if ((type != ffi::Type::kF32 && type != ffi::Type::kF64) || !in[1].is_like(in[0]) ||
      !in[2].is_like(in[0]) || !in[3].is(type, {blocks}) ||
      !in[4].is(ffi::Type::kS32, {blocks, size}) || !words.is(ffi::Type::kS32, {2}) ||
      !out[0].is(type, {blocks, count})) {
    return false;
  }
  const std::int64_t at = words.as<const std::int32_t>()[0];
  shape = {static_cast<std::size_t>(blocks), static_cast<std::size_t>(size),
           static_cast<std::size_t>(at), static_cast<std::size_t>(count),
           words.as<const std::int32_t>()[1] != 0};
  return at >= 0 && at + count <= size;
}

}  // namespace
}  // namespace lockstep

// pole, small, z (B, m), rho (B,), ascending s32 (B, m), s32 (2: first, whether the poles are
// squares of those numbers) -> the offsets (B, count) of the roots first ... first + count - 1 from
// the nearer pole, negative from the one above.
extern "C" lockstep::ffi::Error* lockstep_secular_roots(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  Blocks shape;
  if (!read_blocks(*frame, 0, shape)) {
    return ffi::error(*frame, "lockstep_secular_roots: shapes, types or range do not fit.");
  }
  const bool wide = frame->arguments[0].type == ffi::Type::kF64;
  if (shape.squares)
    (wide ? squares_roots_f64 : squares_roots_f32)(*frame, shape);
  else
    (wide ? roots_f64 : roots_f32)(*frame, shape);
  return nullptr;
}

// pole, small, z (B, m), rho (B,), ascending, ranks s32 (B, m), offset (B, m), s32 (2, as above) ->
// the weights (B, count) of the poles first ... first + count - 1, with the signs of z.
extern "C" lockstep::ffi::Error* lockstep_secular_weights(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  Blocks shape;
  const auto& in = frame->arguments;
  if (!read_blocks(*frame, 2, shape) || !in[5].is_like(in[4]) || !in[6].is_like(in[0])) {
    return ffi::error(*frame, "lockstep_secular_weights: shapes, types or range do not fit.");
  }
  const bool wide = in[0].type == ffi::Type::kF64;
  if (shape.squares)
    (wide ? squares_weights_f64 : squares_weights_f32)(*frame, shape);
  else
    (wide ? weights_f64 : weights_f32)(*frame, shape);
  return nullptr;
}
