// Waits on a counter: when they spin and when they sleep.
#include <sched.h>

#include <thread>
#include <vector>

#include "base/futex_wait.h"
#include "check.h"

namespace lockstep::testing::waits {

using namespace std::chrono_literals;

std::vector<int> allowed_cores() {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  return cores;
}

void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof(one), &one);
}

// A thread on one core that waits for the next step of a counter, and may spin for an hour.
class Waiter {
 public:
  Waiter(Counter& counter, int core)
      : counter_(counter), thread_([this, core, target = counter.load() + 1] {
          stay_on(core);
          is_there_.store(true);
          wait_until(counter_, target, {&never_, Deadline(0), 1h});
        }) {}
  ~Waiter() {
    counter_.advance();
    thread_.join();
  }

  bool is_there() const { return is_there_.load(); }
  bool sleeps() const { return counter_.sleepers.load() != 0; }

 private:
  const std::atomic<std::uint32_t> never_{0};
  std::atomic<bool> is_there_{false};
  Counter& counter_;
  std::thread thread_;
};

void advance_on(Counter& counter, int core) {
  std::thread([&] {
    stay_on(core);
    counter.advance();
  }).join();
}

TEST(a_wait_for_one_on_the_same_core_sleeps) {
  const int core = allowed_cores().front();
  Counter counter;
  advance_on(counter, core);
  const Waiter waiter(counter, core);
  eventually([&] { return waiter.sleeps(); }, "its sleep");
}

TEST(a_wait_for_one_on_another_core_spins) {
  const std::vector<int> cores = allowed_cores();
  if (cores.size() < 2) return;
  Counter counter;
  advance_on(counter, cores.front());
  const Waiter waiter(counter, cores.back());
  eventually([&] { return waiter.is_there(); }, "the waiter");
  std::this_thread::sleep_for(20ms);
  CHECK(!waiter.sleeps());
}

TEST(a_wait_for_one_whose_core_is_not_known_spins) {
  Counter counter;
  const Waiter waiter(counter, allowed_cores().front());
  eventually([&] { return waiter.is_there(); }, "the waiter");
  std::this_thread::sleep_for(20ms);
  CHECK(!waiter.sleeps());
}

}  // namespace lockstep::testing::waits
