// The time of Clock for half of the price: the processor's counter, and a line through what Clock
// showed a moment ago.
//
// Linux makes CLOCK_MONOTONIC of the same counter in the same way, where it trusts it; where it
// does not (its clock source is another one), neither does this, and reads Clock. The kernel
// changes the slope when NTP corrects the clock, by 0.1% at most, so a line is used for a
// millisecond only: it is then off by a microsecond at worst, and by some 50 ns while the slope
// stays.
//
// A new line starts no lower than the old one ends, so readings of one thread never go back. Nor do
// those of a process, but for what makes them cheap: the processor may read its counter before it
// has what an earlier instruction loads. A thread that waits for a cache line which another one
// wrote may so read some hundred nanoseconds less, a microsecond or two on a busy machine, than
// that one read before it wrote. To wait for the loads takes twice as long, nearly as long as
// Clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/futex_wait.h"

namespace lockstep {

inline std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

class TscClock {
 public:
  static Clock::time_point now() { return Clock::time_point(std::chrono::nanoseconds(it.read())); }

 private:
  constexpr TscClock() = default;
  static TscClock it;

  static constexpr int kShift = 32;

  std::int64_t read() {
    const std::uint64_t version = version_.load(std::memory_order_acquire);
    const std::uint64_t since = ticks() - from_ticks_.load(std::memory_order_acquire);
    const std::int64_t from = from_ns_.load(std::memory_order_acquire);
    const std::uint64_t slope = slope_.load(std::memory_order_acquire);
    const std::uint64_t length = length_.load(std::memory_order_acquire);
    // An even version that stayed: all of it belongs to one line.
    if (since < length && version_.load(std::memory_order_relaxed) == version && version % 2 == 0)
      return from + static_cast<std::int64_t>(since * slope >> kShift);
    return read_slowly();
  }

  static std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    // This processor may read its counter before what stands in front of it, another reading too;
    // Linux's own clock has the same barrier. "memory": the compiler may not move it either.
    std::uint64_t value;
    asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(value) : : "memory");
    return value;
#else
    return 0;
#endif
  }

  // One moment by both clocks.
  struct Moment {
    std::uint64_t ticks = 0;
    std::int64_t ns = 0;
  };
  Moment moment();
  std::int64_t read_slowly();
  void learn_slope(const Moment& now);
  std::int64_t draw(const Moment& now);

  enum class Trust { kUnknown, kYes, kNo };
  std::atomic<Trust> trust_{Trust::kUnknown};

  std::mutex mutex_;  // guards the fields that are not atomic, and writers of the others
  Moment base_;       // the slope is that from here
  std::uint64_t known_slope_ = 0;  // 0: not known
  std::uint64_t least_spread_ = ~std::uint64_t{0};

  // The line, in nanoseconds and ticks; slope times 2^32. Odd version: it is being written.
  alignas(64) std::atomic<std::uint64_t> version_{0};
  std::atomic<std::uint64_t> from_ticks_{0}, slope_{0}, length_{0};
  std::atomic<std::int64_t> from_ns_{0};
};

}  // namespace lockstep
