#include "transport/tcp/background.h"

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
}

void BackgroundThreads::add(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (over_) return;
  waiting_.push_back(std::move(work));
  if (waiting_.size() > idle_ && !threads_.empty() && threads_.size() < kMost) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {  // those that there are do it, one after another
    }
  }
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
