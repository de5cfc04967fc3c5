#include "recorder/tsc_clock.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

namespace lockstep {
namespace {

constexpr std::int64_t kLineNs = 1'000'000;
// The least time from which a slope is taken: the two clocks are read some 20 ns apart.
constexpr std::int64_t kBaseNs = 10 * kLineNs;
// The slope changes from one base to the next by one part in so many at most. More is no correction
// by NTP: the counter jumped, or the machine slept.
constexpr std::uint64_t kMaxChange = 500;
constexpr int kTries = 4;

bool kernel_trusts_counter() {
#if defined(__x86_64__)
  constexpr char kCounter[] = "tsc";
#elif defined(__aarch64__)
  constexpr char kCounter[] = "arch_sys_counter";
#else
  constexpr char kCounter[] = "none";
#endif
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  return file >> source && source == kCounter;
}

}  // namespace

constinit TscClock TscClock::it;

// A thread may lose its core between two readings, so the closest pair is taken.
TscClock::Moment TscClock::moment() {
  Moment closest;
  std::uint64_t spread = ~std::uint64_t{0};
  // One reading is enough where it is nearly as close as any before.
  for (int i = 0; i < kTries && spread > 2 * least_spread_; ++i) {
    const std::uint64_t before = ticks();
    const std::int64_t ns = nanoseconds(Clock::now());
    const std::uint64_t between = ticks() - before;
    if (between >= spread) continue;
    spread = between;
    closest = {before + between / 2, ns};
  }
  least_spread_ = std::min(least_spread_, spread);
  return closest;
}

std::int64_t TscClock::read_slowly() {
  if (trust_.load(std::memory_order_relaxed) == Trust::kNo) return nanoseconds(Clock::now());
  std::lock_guard lock(mutex_);
  if (trust_.load(std::memory_order_relaxed) == Trust::kUnknown) {
    trust_.store(kernel_trusts_counter() ? Trust::kYes : Trust::kNo, std::memory_order_relaxed);
    base_ = moment();
  }
  if (trust_.load(std::memory_order_relaxed) == Trust::kNo) return nanoseconds(Clock::now());
  // From before the moment where the next line begins, no thread reads the old one any more.
  version_.fetch_add(1);
  const Moment now = moment();
  if (now.ns - base_.ns >= kBaseNs) learn_slope(now);
  return draw(now);
}

void TscClock::learn_slope(const Moment& now) {
  const auto ns = static_cast<double>(now.ns - base_.ns);
  const auto ticks = static_cast<double>(now.ticks - base_.ticks);
  base_ = now;
  const std::uint64_t old = std::exchange(known_slope_, 0);
  if (ticks < ns / 1e3) return;  // it stood still; no counter has fewer than one tick in 1 us
  const auto slope = static_cast<std::uint64_t>(ns / ticks * 0x1p32);
  const std::uint64_t change = slope > old ? slope - old : old - slope;
  if (old == 0 || change <= old / kMaxChange) known_slope_ = slope;
}

// Another thread may have drawn since the caller looked; then this line goes on from the middle of
// that one.
std::int64_t TscClock::draw(const Moment& now) {
  const std::uint64_t since = now.ticks - from_ticks_.load(std::memory_order_relaxed);
  const std::uint64_t used = std::min(since, length_.load(std::memory_order_relaxed));
  const std::int64_t shown =
      from_ns_.load(std::memory_order_relaxed) +
      static_cast<std::int64_t>(used * slope_.load(std::memory_order_relaxed) >> kShift);
  const std::int64_t from = std::max(now.ns, shown);
  // A line that starts ahead of the clock is less steep, so that it ends with it.
  const auto ahead = static_cast<std::uint64_t>(std::min(from - now.ns, kLineNs / 2));
  const std::uint64_t slope = known_slope_ - known_slope_ / kLineNs * ahead;
  const std::uint64_t length =
      known_slope_ == 0 ? 0 : (static_cast<std::uint64_t>(kLineNs) << kShift) / known_slope_;
  from_ticks_.store(now.ticks, std::memory_order_release);
  from_ns_.store(from, std::memory_order_release);
  slope_.store(slope, std::memory_order_release);
  length_.store(length, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
  return from;
}

}  // namespace lockstep
