#include "transport/tcp/background.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/signals.h"

namespace lockstep {

void BackgroundThreads::start() {
  std::lock_guard lock(mutex_);
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("lockstep: no thread for connections to other hosts: ") + error.what() +
                ".");
  }
  for (std::size_t i = 1; i < std::min(waiting_.size(), kMost); ++i) add_thread();
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
  const auto urgent = waiting_.begin() + static_cast<std::ptrdiff_t>(urgent_);
  const auto place = whom == For::kAbort     ? waiting_.begin()
                     : whom == For::kProgram ? urgent
                                             : waiting_.end();
  waiting_.insert(place, std::move(work));
  urgent_ += whom == For::kWatchdog ? 0 : 1;
  const std::size_t most = whom == For::kAbort     ? 2 * kMost + 1
                           : whom == For::kProgram ? 2 * kMost
                                                   : kMost;
  if (waiting_.size() > idle_ && !threads_.empty() && threads_.size() < most) add_thread();
  changed_.notify_one();
}

void BackgroundThreads::run() {
  block_signals();
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    done_.notify_all();
    changed_.wait(lock, [this] { return over_ || !waiting_.empty(); });
    --idle_;
    if (over_) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    urgent_ -= urgent_ > 0 ? 1 : 0;
    lock.unlock();
    work();
    lock.lock();
  }
}

void BackgroundThreads::wait(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  done_.wait_until(lock, end, [this] { return waiting_.empty() && idle_ == threads_.size(); });
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
