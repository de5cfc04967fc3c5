#include "control/failure_detector.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/descriptor.h"
#include "base/log.h"

namespace lockstep {
namespace {

// How long the reason may take after a connection has ended without a word.
constexpr std::chrono::milliseconds kReasonGrace{500};

}  // namespace

void DeferredAbort::request(const std::string& text, Arena& arena) {
  if (!waits()) return arena.abort(text);
  if (!text_) {
    text_ = text;
    due_ = Clock::now() + kGrace;
  }
  if (const WakeUp* watchdog = watchdog_.load(std::memory_order_acquire)) watchdog->notify();
}

void DeferredAbort::abort_when_due(Arena& arena) {
  if (!text_) return;
  if (waits() && Clock::now() < due_ && !arena.aborted()) return;
  arena.abort(*text_);
  text_.reset();
}

std::chrono::milliseconds DeferredAbort::poll_timeout(std::chrono::milliseconds most) const {
  if (!text_) return most;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due_ - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), most);
}

FailureDetector::FailureDetector(int process, std::size_t num_members, int first_agent,
                                 const std::vector<std::string>& labels, Arena& arena)
    : process_(process),
      first_agent_(first_agent),
      labels_(labels),
      arena_(arena),
      left_(num_members),
      lost_(num_members) {}

void FailureDetector::watch_siblings(const std::vector<int>& pids, int epoll) {
  // An agent does not share the memory in which processes record that they have left.
  if (process_ >= first_agent_) return;
  for (std::size_t i = 0; i < std::min(pids.size(), arena_.header().processes.size()); ++i) {
    if (pids[i] == 0) continue;
    Descriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pids[i], 0)));
    // Some systems do not permit this call; then the death is not detected here.
    if (pidfd.get() < 0 && errno != ESRCH) continue;
    watch_input(epoll, pidfd.get(), nullptr);
    siblings_.push_back({static_cast<int>(i), std::move(pidfd)});
  }
}

void FailureDetector::check_siblings(int epoll) {
  std::erase_if(siblings_, [&](const Sibling& sibling) {
    pollfd request{sibling.pidfd.get(), POLLIN, 0};
    const bool ended = sibling.pidfd.get() < 0 || poll(&request, 1, 0) > 0;
    const auto index = static_cast<std::size_t>(sibling.process);
    if (ended && arena_.header().processes[index].left.load() == 0)
      mark_lost(sibling.process, "lockstep: " + labels_[index] +
                                     " was killed or has crashed. Its own output may tell why.");
    if (ended) epoll_ctl(epoll, EPOLL_CTL_DEL, sibling.pidfd.get(), nullptr);
    return ended;
  });
}

ArenaHeader::Process* FailureDetector::shared(int process) const {
  const bool is_shared = process < first_agent_ && process_ < first_agent_;
  return is_shared ? arena_.process(process) : nullptr;
}

void FailureDetector::set_left(int process) {
  if (auto* known = shared(process)) known->left.store(1, std::memory_order_release);
  at(left_, process).store(1, std::memory_order_release);
}

bool FailureDetector::has_left_for_others(int process) const {
  const auto* known = shared(process);
  return known != nullptr && known->left.load(std::memory_order_acquire) != 0;
}

bool FailureDetector::is_lost(int process) const {
  const auto* known = shared(process);
  return at(lost_, process).load(std::memory_order_acquire) ||
         (known != nullptr && known->lost.load(std::memory_order_acquire) != 0);
}

void FailureDetector::connection_ended(int process, const std::string& why) {
  std::lock_guard lock(ended_mutex_);
  ended_.push_back({process, why, Clock::now()});
}

std::vector<FailureDetector::EndedConnection> FailureDetector::take_ended() {
  std::lock_guard lock(ended_mutex_);
  std::vector<EndedConnection> due;
  const auto latest = Clock::now() - kReasonGrace;
  std::erase_if(ended_, [&](EndedConnection& one) {
    if (one.since > latest) return false;
    due.push_back(std::move(one));
    return true;
  });
  return due;
}

void FailureDetector::lose(int process, const std::string& why) {
  if (has_left(process).load(std::memory_order_acquire) != 0) return;
  mark_lost(process, "lockstep: " + at(labels_, process) +
                         " has ended, or its host cannot be reached: " + at(labels_, process_) +
                         " has lost its connection (" + why + "). Its own output may tell why.");
}

void FailureDetector::fail_changed(int process, const std::string& why) {
  const std::string text = "lockstep: " + why + ", from " + at(labels_, process) + " to " +
                           at(labels_, process_) + ". " + kTraffic;
  if (process < first_agent_ && process_ < first_agent_)
    arena_.abort(text + " None of the record was used, and both processes were alive.");
  else
    log_or_drop(text + " An agent lost this connection by it; the job goes on.");
}

// The flag comes first: the watchdog checks for lost processes as soon as it is notified.
void FailureDetector::mark_lost(int process, const std::string& text) {
  at(lost_, process).store(true, std::memory_order_release);
  if (auto* known = shared(process)) known->lost.store(1, std::memory_order_release);
  if (process < first_agent_ && process_ < first_agent_) deferred_abort_.request(text, arena_);
}

}  // namespace lockstep
