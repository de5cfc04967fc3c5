// How ranks wait for one another: counters that only grow, and a wait that spins briefly and then
// sleeps on a futex.
//
// A Counter lives in memory that several processes may map. Its value wraps; distances are taken
// as signed differences, so waiter and writer may be up to 2^31 steps apart. The sleeper count
// lets a writer skip the system call when no thread sleeps. Writer: add to steps, then read
// sleepers. Waiter: add to sleepers, then read steps. Both pairs are sequentially consistent, so at
// least one side sees the other and no wake-up is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep {

using Clock = std::chrono::steady_clock;

// The first number of counters, messages and collectives. They wrap after 2^32: a test builds an
// engine in which they begin shortly before that (tests/native/test_wrapping.py).
#ifndef LOCKSTEP_FIRST_NUMBER
#define LOCKSTEP_FIRST_NUMBER 0
#endif
inline constexpr std::uint32_t kFirstNumber = LOCKSTEP_FIRST_NUMBER;

struct alignas(64) Counter {
  std::atomic<std::uint32_t> steps{0};
  std::atomic<std::uint32_t> sleepers{0};
  std::atomic<std::uint32_t> core{0};  // of the last writer, and 1; 0: not known

  std::uint32_t load() const { return kFirstNumber + steps.load(std::memory_order_acquire); }
  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(load() - target) >= 0;
  }
  void advance();
  // Whether the last writer was then on the core of the calling thread.
  bool was_advanced_here() const;
};
static_assert(sizeof(Counter) == 64);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// When a wait must end. Made once per collective, so that all its waits share one deadline.
class Deadline {
 public:
  // seconds <= 0 means never, and so does what the clock cannot count to.
  explicit Deadline(double seconds, Clock::time_point start = Clock::now())
      : end_(seconds > 0 && seconds < 1e9 ? start + std::chrono::duration_cast<Clock::duration>(
                                                        std::chrono::duration<double>(seconds))
                                          : Clock::time_point::max()) {}
  bool passed() const { return end_ != Clock::time_point::max() && Clock::now() >= end_; }
  Clock::duration left() const { return end_ - Clock::now(); }
  bool never() const { return end_ == Clock::time_point::max(); }

 private:
  Clock::time_point end_;
};

// A timeout that a caller in C has given, so bounded that it ends and is not negative.
Clock::duration bounded(double seconds);

enum class WaitResult { kReached, kDeadline, kAborted, kLeft };

// Notifies the watchdog of this process (a thread of Python's), for example of a long wait.
class WakeUp {
 public:
  WakeUp();  // throws Error
  ~WakeUp();
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  int fd() const { return fd_; }  // readable once it has been notified
  void notify() const;

 private:
  int fd_;
};

// A wait from which on the watchdog checks what the others are doing.
inline constexpr std::chrono::milliseconds kLongWait{100};

// What a wait watches besides its counter, and how long it may spin.
struct WaitLimits {
  const std::atomic<std::uint32_t>* abort;  // non-zero once the job has failed
  Deadline deadline;
  std::chrono::nanoseconds spin;    // at most, before sleeping; zero where ranks outnumber cores
  const WakeUp* wake_up = nullptr;  // notified while the wait is a long one
  // Becomes non-zero once the peer that is waited for will do nothing any more; null where that is
  // not known.
  const std::atomic<std::uint32_t>* left = nullptr;
  // Becomes non-zero once a control message is of no use any more.
  const std::atomic<std::uint32_t>* stop = nullptr;
};

// For waits that no abort ends.
inline const std::atomic<std::uint32_t> kNeverAborted{0};

// What a thread does while it waits: for one that receives, itself, what it waits for.
class WaitingWork {
 public:
  // Does what can be done at once.
  virtual void poll() = 0;
  // Waits, for `most` time, until there is something to do, and does it. False: it cannot, and the
  // thread is to sleep until the counter advances.
  virtual bool wait(Clock::duration most) = 0;

 protected:
  ~WaitingWork() = default;
};

// Returns once the counter has reached the target, the deadline has passed, the job is aborted, or
// the one that is waited for has left without it. `work` advances the counter, or nothing does
// but by `Counter::advance`.
WaitResult wait_until(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                      WaitingWork* work = nullptr);

}  // namespace lockstep
