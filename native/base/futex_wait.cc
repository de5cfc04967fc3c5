#include "base/futex_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/error.h"

namespace lockstep {
namespace {

// A sleeper checks the abort flag this often: an abort wakes no sleeper.
constexpr std::chrono::milliseconds kMaxSleep{50};
// The watchdog takes 0.7 ms of a core each time: a job that hangs for hours should cost nothing.
constexpr std::chrono::milliseconds kOftenNotified{1000}, kRarely{250};
constexpr int kSpinPolls = 32;
// A wait for a thread on the same core yields so often to it, and then sleeps.
constexpr int kYieldsOnOneCore = 4;
// A program that has ended may have dispatched a collective that is still to come: so many polls,
// each after a sleep, have to find it gone.
constexpr int kPollsAtLeft = 6;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The core of this thread, and 1; 0: the system does not tell.
std::uint32_t own_core() { return static_cast<std::uint32_t>(sched_getcpu() + 1); }

// The futex is not FUTEX_PRIVATE, because several processes may map the word.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, Clock::duration most) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(most).count();
  const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

// Returns whether the counter has reached the target.
//
// The one that is waited for may sit on this very core, so a spin gives the core away between
// polls. On an idle core a yield costs less than a microsecond. Linux yields to threads of the same
// control group and session (autogroup) only. `lockstep run` gives each process a session, and then
// nothing but sleep lets the other one run.
bool spin_until(Counter& counter, std::uint32_t target, std::chrono::nanoseconds length,
                WaitingWork* work) {
  const auto poll = [&] {
    for (int i = 0; i < kSpinPolls; ++i) {
      if (counter.reached(target)) return true;
      pause();
    }
    return false;
  };
  if (poll()) return true;
  const auto end = Clock::now() + length;
  int on_one_core = 0;
  do {
    if (work != nullptr) work->poll();
    sched_yield();
    if (poll()) return true;
    // With work this thread may have advanced the counter itself.
    if (work == nullptr && counter.was_advanced_here() && ++on_one_core == kYieldsOnOneCore)
      return false;
  } while (Clock::now() < end);
  return false;
}

}  // namespace

Clock::duration bounded(double seconds) {
  constexpr double kMaxLength = 1e6;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds > 0 ? std::min(seconds, kMaxLength) : 0));
}

WakeUp::WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw Error("lockstep: no file descriptor is left for a wake-up (ulimit -n).");
}

WakeUp::~WakeUp() { close(fd_); }

void WakeUp::notify() const {
  const std::uint64_t one = 1;
  // Writing fails only while 2^64 - 1 notifications are unread.
  [[maybe_unused]] const auto written = write(fd_, &one, sizeof(one));
}

bool Counter::was_advanced_here() const {
  const std::uint32_t last = core.load(std::memory_order_relaxed);
  return last != 0 && last == own_core();
}

void Counter::advance() {
  core.store(own_core(), std::memory_order_relaxed);
  steps.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, &steps, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

WaitResult wait_until(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                      WaitingWork* work) {
  if (counter.reached(target)) return WaitResult::kReached;
  const auto aborted = [&] { return limits.abort->load(std::memory_order_acquire) != 0; };
  if (spin_until(counter, target, limits.spin, work)) return WaitResult::kReached;
  const auto notify_rarely_from = Clock::now() + kOftenNotified;
  auto notify_at = Clock::now() + kLongWait;
  int polls_at_left = 0;
  for (;;) {
    if (aborted()) return WaitResult::kAborted;
    if (limits.left != nullptr && limits.left->load(std::memory_order_acquire) != 0 &&
        ++polls_at_left > kPollsAtLeft)
      return counter.reached(target) ? WaitResult::kReached : WaitResult::kLeft;
    if (limits.deadline.passed()) return WaitResult::kDeadline;
    // The watchdog is notified as often as a sleep without work would end, and rarely later.
    if (const auto now = Clock::now(); limits.wake_up != nullptr && now >= notify_at) {
      limits.wake_up->notify();
      notify_at = now + (now < notify_rarely_from ? kMaxSleep : kRarely);
    }
    Clock::duration most = kMaxSleep;
    if (!limits.deadline.never())
      most =
          std::clamp<Clock::duration>(limits.deadline.left(), std::chrono::microseconds(1), most);
    if (work != nullptr && work->wait(most)) {
      if (counter.reached(target)) return WaitResult::kReached;
      continue;
    }
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = counter.steps.load(std::memory_order_seq_cst);
    const bool arrived = static_cast<std::int32_t>(kFirstNumber + seen - target) >= 0;
    if (!arrived) sleep_while(counter.steps, seen, most);
    counter.sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (arrived || counter.reached(target)) return WaitResult::kReached;
  }
}

}  // namespace lockstep
