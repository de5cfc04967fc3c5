// Lines on stderr about refused peers. An attack brings thousands of them: the first one with
// each reason is reported at once, and those that follow as one count in each interval.
#pragma once

#include <chrono>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "base/futex_wait.h"

namespace lockstep {

// The caller serializes the calls.
class RefusalLog {
 public:
  // `label` is of the process that refuses, "process 0 (pid 4 on a)".
  explicit RefusalLog(std::string label, Clock::duration interval = std::chrono::minutes(1))
      : label_(std::move(label)), interval_(interval) {}

  // `what` completes the label: "refused a connection from 10.0.0.1 port 4".
  void add(const std::string& what, const std::string& reason);
  // Reports the refusals of an interval that is over. The owner's thread calls it again and again.
  void report_due();
  std::size_t total() const { return total_; }

 private:
  // Peers must not fill stderr with reasons that they invent.
  static constexpr std::size_t kMaxReasons = 8;

  const std::string label_;
  const Clock::duration interval_;
  Clock::time_point reported_{};  // when the last line was written
  std::size_t total_ = 0, unreported_ = 0;
  std::string latest_;
  std::set<std::string> reasons_;
};

}  // namespace lockstep
