#include "core/crew.h"

namespace lockstep {

void Crew::run_task(std::uint32_t parts, Task task) {
  task_ = task;
  const std::uint32_t before = finished_.load();
  const std::uint64_t number = (open_.load(std::memory_order_relaxed) >> 32) + 1;
  open_.store(number << 32 | std::uint64_t{parts} << 16, std::memory_order_release);
  posted_.advance();
  std::uint32_t own = 0;
  for (std::uint32_t part = 0; claim(part); ++own) task.part(task.it, part);
  // No deadline and no abort: a part is arithmetic, and it uses the memory of this task.
  wait_until(finished_, before + parts - own, WaitLimits{&kNeverAborted, Deadline(0), spin_});
}

bool Crew::claim(std::uint32_t& part) {
  std::uint64_t open = open_.load(std::memory_order_acquire);
  for (;;) {
    const auto next = static_cast<std::uint32_t>(open & 0xffff);
    if (next >= static_cast<std::uint32_t>(open >> 16 & 0xffff)) return false;
    if (open_.compare_exchange_weak(open, open + 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      part = next;
      return true;
    }
  }
}

bool Crew::help() {
  bool helped = false;
  for (std::uint32_t part = 0; claim(part); helped = true) {
    task_.part(task_.it, part);
    finished_.advance();
  }
  return helped;
}

bool Crew::Helper::wait(Clock::duration most) {
  if (!crew_.helps()) return false;
  const std::uint32_t seen = crew_.posted_.load();
  if (done_.reached(target_)) return true;
  const auto spin = crew_.help() ? crew_.spin_ : std::chrono::nanoseconds(0);
  const double seconds = std::chrono::duration<double>(most).count();
  wait_until(crew_.posted_, seen + 1, WaitLimits{limits_.abort, Deadline(seconds), spin});
  return true;
}

}  // namespace lockstep
