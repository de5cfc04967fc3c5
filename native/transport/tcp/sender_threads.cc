#include "transport/tcp/sender_threads.h"

#include <system_error>

#include "base/signals.h"

namespace lockstep {

SenderThreads::SenderThreads(std::size_t count) {
  try {
    while (threads_.size() < count) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // too many threads: those that have started do it all
  }
}

SenderThreads::~SenderThreads() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void SenderThreads::run(std::uint32_t stripes, const Send& send) {
  Batch batch{send, stripes};
  if (stripes > 1) {
    std::lock_guard lock(mutex_);
    open_.push_back(&batch);
  }
  for (std::uint32_t i = 1; i < stripes; ++i) posted_.notify_one();
  send(0);
  std::unique_lock lock(mutex_);
  while (batch.next < batch.stripes) send_next(batch, lock);
  done_.wait(lock, [&] { return batch.done == batch.stripes; });
}

void SenderThreads::work() {
  block_signals();
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return over_ || !open_.empty(); });
    if (over_) return;
    send_next(*open_.front(), lock);
  }
}

// The batch may be gone once its last stripe is counted and the lock is given up.
void SenderThreads::send_next(Batch& batch, std::unique_lock<std::mutex>& lock) {
  const std::uint32_t stripe = batch.next++;
  if (batch.next == batch.stripes) std::erase(open_, &batch);
  lock.unlock();
  batch.send(stripe);
  lock.lock();
  if (++batch.done == batch.stripes) done_.notify_all();
}

}  // namespace lockstep
