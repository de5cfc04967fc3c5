// Threads that send stripes of large messages (stripes.h), to all processes: the thread that has
// the message sends stripe 0, and what none of these has begun.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {

class SenderThreads {
 public:
  // Fewer where the system permits no more threads.
  explicit SenderThreads(std::size_t count);
  ~SenderThreads();  // no thread is in `run`

  // Calls send(i) for each i below `stripes`, on this thread and others at the same time, and
  // returns when all are done. `send` has a deadline of its own and does not throw. Any threads may
  // call this at the same time, but none of a forked child.
  using Send = std::function<void(std::uint32_t)>;
  void run(std::uint32_t stripes, const Send& send);

 private:
  // A batch lies on the stack of the thread that waits in `run`.
  struct Batch {
    const Send& send;
    const std::uint32_t stripes;
    std::uint32_t next = 1;  // that no thread has begun
    std::uint32_t done = 1;  // but for stripe 0, which counts as done here
  };

  void work();
  void send_next(Batch& batch, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards what follows; not held while a stripe is sent
  std::condition_variable posted_, done_;
  std::deque<Batch*> open_;  // with a stripe that no thread has begun
  bool over_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace lockstep
