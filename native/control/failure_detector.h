// A process is missing, and the job is to fail. The watchers, of this process and of other hosts,
// may know why: they get a moment to abort the job with what they know.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "transport/shm/futex_wait.h"
#include "transport/shm/segment.h"

namespace lockstep {

class Verdict {
 public:
  // How long another word is waited for.
  static constexpr std::chrono::milliseconds kOtherWord{600};

  // The alarm of who watches this process; null: nobody does, and verdicts are passed at once.
  void set_watcher(const Alarm* watcher) { watcher_.store(watcher, std::memory_order_release); }
  bool is_watched() const { return watcher_.load(std::memory_order_acquire) != nullptr; }
  // The program here has ended, and so perhaps its watcher: those of others may know more.
  void set_left() { left_.store(true, std::memory_order_release); }

  // What follows is the reader's. Aborts the job with the text, by `pass_when_due` if it is
  // watched. The first text stays.
  void pass(const std::string& text, Arena& arena);
  void pass_when_due(Arena& arena);
  // At most `most`, and not later than it is due.
  std::chrono::milliseconds nap(std::chrono::milliseconds most) const;

 private:
  bool waits() const { return is_watched() || left_.load(std::memory_order_acquire); }

  std::atomic<const Alarm*> watcher_{nullptr};
  std::atomic<bool> left_{false};
  Clock::time_point due_;
  std::optional<std::string> text_;
};

}  // namespace lockstep
