// Ranks of one process that wait for their leader take parts of its work meanwhile: where a process
// has a core for each of its devices, one thread alone would copy and add while the others idle.
//
// The leader offers a task in parts; each part is claimed once, by a compare-and-swap of a word
// that has the number of the task, how many parts it has, and the next one. So a rank that is late
// with its claim, of a task that is over, claims nothing. The task is over when all parts are done,
// and only then does the leader go on: what a part uses may lie on the leader's stack. Parts write
// to different places, so results do not depend on which thread does which.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>

#include "base/futex_wait.h"

namespace lockstep {

class Crew {
 public:
  static constexpr std::uint32_t kMaxParts = 0xffff;

  // `spin`: how long a rank that has helped looks for the next task before it sleeps. Zero: ranks
  // outnumber cores, and none helps.
  explicit Crew(std::chrono::nanoseconds spin) : spin_(spin) {}

  bool helps() const { return spin_.count() > 0; }

  // For the leader: calls `part(i)` for each i below `parts`, at most kMaxParts, in any order and
  // by several threads at once. It must not throw.
  template <typename Part>
  void run(std::uint32_t parts, const Part& part) {
    static_assert(std::is_nothrow_invocable_v<const Part&, std::uint32_t>);
    run_task(parts,
             {[](const void* it, std::uint32_t i) noexcept { (*static_cast<const Part*>(it))(i); },
              &part});
  }
  // The leader has done its work: ranks that wait for a task look at what they wait for.
  void release() {
    if (helps()) posted_.advance();
  }

  // What a rank does that waits until `done` has reached `target`.
  class Helper final : public WaitingWork {
   public:
    Helper(Crew& crew, const Counter& done, std::uint32_t target, const WaitLimits& limits)
        : crew_(crew), done_(done), target_(target), limits_(limits) {}
    void poll() override {
      if (crew_.helps()) crew_.help();
    }
    bool wait(Clock::duration most) override;

   private:
    Crew& crew_;
    const Counter& done_;
    const std::uint32_t target_;
    const WaitLimits& limits_;
  };

 private:
  struct Task {
    void (*part)(const void*, std::uint32_t) noexcept;
    const void* it;
  };

  void run_task(std::uint32_t parts, Task task);
  // Does parts of the task that is open; false where there is none.
  bool help();
  // The number of the next part; false where none is left.
  bool claim(std::uint32_t& part);

  const std::chrono::nanoseconds spin_;
  Task task_{};  // read only by a thread with a claim
  // The bits, from the lowest: 16 of the next part, 16 of the parts, 32 of the task.
  alignas(64) std::atomic<std::uint64_t> open_{0};
  Counter posted_;    // tasks, and leaders that are done
  Counter finished_;  // parts done by others than the leader
};

}  // namespace lockstep
