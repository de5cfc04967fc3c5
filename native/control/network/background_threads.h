// Threads for what waits for other hosts and must hold up neither a rank, nor a watchdog, nor the
// progress thread: connections that are made when they are first needed (deferred.cc).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/futex_wait.h"

namespace lockstep {

class BackgroundThreads {
 public:
  // The most threads for watchdogs, and as many for the program; an abort has one of its own. Each
  // process that is stopped keeps one busy until it goes on.
  static constexpr std::size_t kMost = 32;
  enum For { kAbort, kProgram, kWatchdog };

  BackgroundThreads() = default;
  ~BackgroundThreads() { stop(); }

  void start();  // the first threads; throws Error
  // Has a thread do the work, which must not throw. Does not wait. An abort comes
  // first, then what the program needs, then what a watchdog does.
  void add(std::function<void()> work, For whom = kProgram);
  // Returns when all is done, or at that time.
  void wait(Clock::time_point end);
  // Returns when what has begun is done. What has not is dropped.
  void stop();
  // Forgets the threads in a forked child, which has none.
  void abandon();

 private:
  void run();
  // The rest needs `mutex_`.
  void add_thread();
  std::size_t num_waiting() const;
  std::optional<For> next() const;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_, done_;
  std::deque<std::function<void()>> waiting_[3];  // for each
  std::size_t for_watchdog_ = 0;                  // threads that do something for it
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool over_ = false;
};

}  // namespace lockstep
