// Threads that make connections: what is done first, and what keeps what waiting.
#include "control/network/background_threads.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

#include "check.h"
#include "harness.h"

namespace lockstep::testing::background_threads {

TEST(what_a_program_needs_does_not_wait_for_what_watchdogs_do) {
  constexpr int kMost = static_cast<int>(BackgroundThreads::kMost);
  std::atomic<int> begun{0}, done{0};
  std::atomic<bool> over{false};
  BackgroundThreads threads;
  const auto block = [&] {
    ++begun;
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (int i = 0; i < kMost; ++i) threads.add(block, BackgroundThreads::kWatchdog);
  threads.start();
  for (int i = 0; i < 5; ++i) threads.add(block, BackgroundThreads::kWatchdog);
  for (int i = 0; i < 100; ++i) threads.add([&] { ++done; }, BackgroundThreads::kProgram);
  eventually([&] { return done == 100 && begun == kMost; }, "the program's work");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // idle threads take no more of them
  CHECK_EQUAL(begun.load(), kMost);
  for (int i = 0; i < kMost + 5; ++i) threads.add(block, BackgroundThreads::kProgram);
  threads.add([&] { ++done; }, BackgroundThreads::kAbort);
  eventually([&] { return done == 101; }, "the abort");
  over = true;
  threads.wait(Clock::now() + std::chrono::seconds(20));
  CHECK_EQUAL(begun.load(), 2 * (kMost + 5));
}

TEST(what_takes_long_keeps_nothing_else_waiting) {
  std::atomic<int> begun{0}, done{0};
  std::atomic<bool> over{false};
  BackgroundThreads threads;
  threads.start();
  for (std::size_t i = 0; i + 1 < BackgroundThreads::kMost; ++i)
    threads.add([&] {
      ++begun;
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  for (int i = 0; i < 100; ++i) threads.add([&] { ++done; });
  eventually([&] { return done == 100 && begun == BackgroundThreads::kMost - 1; }, "the work");
  threads.wait(Clock::now() + std::chrono::milliseconds(20));
  CHECK_EQUAL(begun.load(), static_cast<int>(BackgroundThreads::kMost) - 1);
  over = true;
  threads.wait(Clock::now() + std::chrono::seconds(20));
  threads.stop();
  threads.add([&] { ++done; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_EQUAL(done.load(), 100);
}

}  // namespace lockstep::testing::background_threads
