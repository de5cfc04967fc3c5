// A worker of UCX, which sends and receives everything of this process, and the thread that makes
// it progress.
//
// UCX is called under one lock: by the threads that send, and by the progress thread, which sleeps
// on the worker's descriptor while there is nothing to do. UCX's callbacks run inside `progress`,
// so with the lock.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/futex_wait.h"
#include "transport/ucx/library.h"

namespace lockstep {

class UcxWorker {
 public:
  // `num_peers`: how many processes it will talk to, for the choice of UCX's transports. `devices`:
  // the network devices that UCX may use; "" for its own choice.
  UcxWorker(const ucp::Library& library, std::size_t num_peers, const std::string& devices = {});
  ~UcxWorker();

  // A lock that the progress thread leaves to the others when they want it.
  class Lock {
   public:
    explicit Lock(UcxWorker& worker);
    ~Lock() { worker_.mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    UcxWorker& worker_;
  };

  ucp::Worker* get() const { return worker_; }  // under the lock
  // The address at which others reach the worker.
  std::vector<std::byte> address() const;
  std::size_t max_header() const;

  // Starts the thread, which calls `check` now and then, without the lock.
  void start(std::function<void()> check);
  // Returns when the thread has ended.
  void stop();
  // UCX keeps what it has when this is destroyed.
  void abandon() { abandoned_ = true; }
  // Under the lock: moves what can be moved now.
  void progress();
  // Makes progress if the lock is free, and else leaves it to the thread that has the lock.
  void try_progress();
  // Under the lock: something waits that takes the progress thread.
  void wake() { library_.worker_signal(worker_); }
  // Called without the lock. Returns when all that was sent has left this process, or by `end`, or
  // when `abort` is set.
  void flush(Clock::time_point end, const std::atomic<std::uint32_t>& abort);

 private:
  void run();
  bool progress_and_arm();

  const pid_t owner_ = getpid();
  const ucp::Library& library_;
  ucp::Context* context_ = nullptr;
  ucp::Worker* worker_ = nullptr;
  int fd_ = -1;  // the worker's
  std::mutex mutex_;
  std::atomic<int> waiting_{0};  // threads that want the lock
  std::atomic<bool> over_{false};
  bool abandoned_ = false;
  std::function<void()> check_;
  std::thread thread_;
};

}  // namespace lockstep
