// TscClock beside the clock that it follows.
#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "recorder/tsc_clock.h"

namespace lockstep::testing::tsc_clocks {

using std::chrono::milliseconds;

// Far more than it is ever off: the test may lose its core, or run under a sanitizer.
constexpr std::chrono::microseconds kOff{200};

// A processor may read its counter before it has what an earlier instruction loads; not with this
// between them.
void wait_for_loads() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#elif defined(__aarch64__)
  asm volatile("dsb ishld\n\tisb" ::: "memory");  // isb alone waits for no load
#endif
}

TEST(a_quick_clock_follows_the_clock) {
  const auto end = Clock::now() + milliseconds(100);
  for (auto before = Clock::now(); before < end;) {
    const auto quick = TscClock::now();
    const auto after = Clock::now();
    CHECK(before - kOff <= quick && quick <= after + kOff);
    before = after;
  }
  // A line is long over; what it says is not.
  std::this_thread::sleep_for(milliseconds(30));
  const auto before = Clock::now();
  const auto quick = TscClock::now();
  CHECK(before - kOff <= quick && quick <= Clock::now() + kOff);
}

TEST(a_quick_clock_never_goes_back) {
  // The latest reading of all threads: a thread that has seen it must not read less.
  std::atomic<Clock::rep> latest{0};
  std::atomic<int> went_back{0};
  const auto end = Clock::now() + milliseconds(100);
  in_threads(3, [&](std::size_t) {
    for (Clock::rep own = 0; Clock::now() < end;) {
      Clock::rep seen = latest.load();
      wait_for_loads();
      const Clock::rep read = TscClock::now().time_since_epoch().count();
      if (read < own || read < seen) went_back.fetch_add(1);
      own = read;
      while (seen < read && !latest.compare_exchange_weak(seen, read)) {
      }
    }
  });
  CHECK_EQUAL(went_back.load(), 0);
}

}  // namespace lockstep::testing::tsc_clocks
