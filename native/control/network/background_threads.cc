#include "control/network/background_threads.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/signals.h"

namespace lockstep {

void BackgroundThreads::start() {
  std::lock_guard lock(mutex_);
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("lockstep: no thread for connections to other hosts: ") + error.what() +
                ".");
  }
  for (std::size_t i = 1; i < std::min(num_waiting(), kMost); ++i) add_thread();
}

void BackgroundThreads::add_thread() {
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {  // those that there are do it, one after another
  }
}

void BackgroundThreads::add(std::function<void()> work, For whom) {
  std::lock_guard lock(mutex_);
  if (over_) return;
  waiting_[whom].push_back(std::move(work));
  const std::size_t most = whom == kWatchdog ? kMost : whom == kProgram ? 2 * kMost : 2 * kMost + 1;
  if (num_waiting() > idle_ && !threads_.empty() && threads_.size() < most) add_thread();
  changed_.notify_one();
}

std::size_t BackgroundThreads::num_waiting() const {
  return waiting_[kAbort].size() + waiting_[kProgram].size() + waiting_[kWatchdog].size();
}

std::optional<BackgroundThreads::For> BackgroundThreads::next() const {
  for (const For whom : {kAbort, kProgram})
    if (!waiting_[whom].empty()) return whom;
  if (waiting_[kWatchdog].empty() || for_watchdog_ >= kMost) return {};
  return kWatchdog;
}

void BackgroundThreads::run() {
  block_signals();
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    done_.notify_all();
    changed_.wait(lock, [this] { return over_ || next(); });
    --idle_;
    if (over_) return;
    const For whom = *next();
    const std::function<void()> work = std::move(waiting_[whom].front());
    waiting_[whom].pop_front();
    for_watchdog_ += whom == kWatchdog ? 1 : 0;
    lock.unlock();
    work();
    lock.lock();
    for_watchdog_ -= whom == kWatchdog ? 1 : 0;
  }
}

void BackgroundThreads::wait(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  done_.wait_until(lock, end, [this] { return num_waiting() == 0 && idle_ == threads_.size(); });
}

void BackgroundThreads::stop() {
  std::vector<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    over_ = true;
    ended.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : ended) thread.join();
}

void BackgroundThreads::abandon() {
  for (std::thread& thread : threads_) thread.detach();
  threads_.clear();
}

}  // namespace lockstep
