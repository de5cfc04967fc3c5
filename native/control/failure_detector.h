// Which processes have left, and which are lost: processes of other hosts whose connection ended,
// and processes of this host that died. A lost process fails the job.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/futex_wait.h"
#include "transport/shm/segment.h"

namespace lockstep {

// Fails the job after a grace period in which the watchdogs, of this process and of other hosts,
// may abort it with a better reason. Without a watchdog the job fails at once.
class DeferredAbort {
 public:
  static constexpr std::chrono::milliseconds kGrace{600};

  // The wake-up of this process's watchdog; null: there is none.
  void set_watchdog(const WakeUp* watchdog) {
    watchdog_.store(watchdog, std::memory_order_release);
  }
  bool is_watched() const { return watchdog_.load(std::memory_order_acquire) != nullptr; }
  // The program here has ended, and perhaps its watchdog: the watchdogs of others may know more.
  void set_left() { left_.store(true, std::memory_order_release); }

  // The rest is for the progress thread. Aborts the job with the text, by `abort_when_due` if it is
  // watched. The first text stays.
  void request(const std::string& text, Arena& arena);
  void abort_when_due(Arena& arena);
  // How long a poll may wait: at most `most`, and not beyond the moment when the abort is due.
  std::chrono::milliseconds poll_timeout(std::chrono::milliseconds most) const;

 private:
  bool waits() const { return is_watched() || left_.load(std::memory_order_acquire); }

  std::atomic<const WakeUp*> watchdog_{nullptr};
  std::atomic<bool> left_{false};
  Clock::time_point due_;
  std::optional<std::string> text_;
};

// What changed bytes mean to the user.
inline constexpr const char* kTraffic =
    "Something changes the traffic between these hosts: an attacker, or a faulty network device. "
    "Tell the administrators of this network.";

class FailureDetector {
  template <typename Flags>
  static auto& at(Flags& flags, int process) {
    return flags[static_cast<std::size_t>(process)];
  }

 public:
  // Members from `first_agent` on are agents. The references outlive this.
  FailureDetector(int process, std::size_t num_members, int first_agent,
                  const std::vector<std::string>& labels, Arena& arena);

  // Has `epoll` report the death of these processes of this host (0: not watched).
  void watch_siblings(const std::vector<int>& pids, int epoll);
  // Detects siblings that have died.
  void check_siblings(int epoll);

  void set_left(int process);
  // A connection of that process has ended that is for stripes, or was made when it was first
  // needed, and nothing has said that its program has. That may come a moment later by another
  // connection, of this process or of its host. Any thread may call this.
  void connection_ended(int process, const std::string& why);
  struct EndedConnection {
    int process;
    std::string why;
    Clock::time_point since;
  };
  // Takes the connections that have ended so long ago that nothing more will be said.
  std::vector<EndedConnection> take_ended();
  // The connection of that process has ended. It is lost unless it had left.
  void lose(int process, const std::string& why);
  // What that process has sent was changed on its way. Fails the job at once: that is certain, and
  // no watchdog knows more. Any thread may call this.
  void fail_changed(int process, const std::string& why);
  // Fails the job with the text. The job needs no agent, and an agent cannot fail the job.
  void mark_lost(int process, const std::string& text);

  // Becomes non-zero once the program of that process has ended.
  const std::atomic<std::uint32_t>& has_left(int process) const { return at(left_, process); }
  // Whether this process, or another one of this host, has noticed the loss.
  bool is_lost(int process) const;
  bool has_left_for_others(int process) const;
  DeferredAbort& deferred_abort() { return deferred_abort_; }

 private:
  // What this host's processes share of that one; null for an agent, or in one.
  ArenaHeader::Process* shared(int process) const;

  struct Sibling {
    int process;
    Descriptor pidfd;
  };

  const int process_;
  const int first_agent_;
  const std::vector<std::string>& labels_;
  Arena& arena_;
  std::vector<std::atomic<std::uint32_t>> left_;
  std::vector<std::atomic<bool>> lost_;
  std::vector<Sibling> siblings_;  // that have not ended
  std::mutex ended_mutex_;
  std::vector<EndedConnection> ended_;  // guarded by it
  DeferredAbort deferred_abort_;
};

}  // namespace lockstep
