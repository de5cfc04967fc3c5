// Kernels that call the BLAS take turns: as many run at once as this process has processors.
// Threads of several devices that shared one would drive each other's blocks out of its cache.
#pragma once

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace lockstep::blas {

class Turn {
 public:
  // No deadline: a device that has a turn computes, and waits for none that has no turn.
  Turn() {
    Processors& all = processors();
    std::unique_lock lock(all.mutex);
    all.released.wait(lock, [&] { return all.free > 0; });
    --all.free;
  }
  ~Turn() {
    Processors& all = processors();
    const std::lock_guard lock(all.mutex);
    ++all.free;
    all.released.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Counts the processors of the calling thread, once; Python's knows those of the process.
  static void count() { processors(); }

 private:
  // std::counting_semaphore is not used: that of GCC 12 can lose a wake-up where there are several.
  struct Processors {
    std::mutex mutex;
    std::condition_variable released;
    int free = of_this_thread();
  };
  static Processors& processors() {
    static Processors& all = *new Processors;  // kernels may run while the process exits
    return all;
  }
  static int of_this_thread() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
};

}  // namespace lockstep::blas
