// Connections that are made when they are first needed (see mesh.h): both directions at once, so
// that two processes that exchange messages also notice each other's end.
//
// A background thread makes the connection, because a rank or a watchdog that needs it may have a
// short deadline. The other end takes a connection that it has accepted, and that ends without a
// kLeave, for the death of this process. So a connection that has begun is not given up.
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "control/network/endpoint.h"

namespace lockstep {
namespace {

constexpr std::chrono::microseconds kCheckInterval{500};
// Between two tries to answer a connection.
constexpr std::chrono::milliseconds kRetryInterval{200};
constexpr std::chrono::milliseconds kNotifyInterval{50};

}  // namespace

void Endpoint::reach(int process, const WaitLimits& limits) {
  auto notify_at = Clock::now() + kLongWait;
  const auto check = [&] {
    if (limits.abort->load(std::memory_order_acquire) != 0) throw Error(arena_->abort_text());
    if (limits.wake_up != nullptr && Clock::now() >= notify_at) {
      limits.wake_up->notify();
      notify_at = Clock::now() + kNotifyInterval;
    }
    if (has_left(process) != 0 || is_lost(process)) throw Error(has_ended(process));
  };
  try {
    if (!meet_later(process, limits.deadline, BackgroundThreads::kProgram, check))
      throw Late(has_not_connected(process));
  } catch (const Error& error) {
    // The process may have ended a moment ago: others learn of that, and why, before this process
    // does.
    if (wait_for_reason(process, limits)) return;
    if (arena_->aborted()) throw Error(arena_->abort_text());
    // Watchdogs may tell why this one still waits for it.
    if (dynamic_cast<const Refused*>(&error) != nullptr) throw Divergence(does_not_listen(process));
    throw;
  }
}

std::string Endpoint::has_not_connected(int process) const {
  return "lockstep: " + label(process_) + " waited in vain for " + label(process) +
         " to connect: it may be stopped, or a firewall lets no TCP through between their hosts. "
         "--collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) sets the limit; 0 means none.";
}

std::string Endpoint::does_not_listen(int process) const {
  return "lockstep: " + label(process_) + " waits for " + label(process) +
         ", whose program has ended: nothing listens at " + peer_of(process).address +
         " any more. " + kEndsEarlyHint + " If it still runs, a firewall refuses connections.";
}

std::string Endpoint::has_ended(int process) const {
  return "lockstep: " + label(process) +
         " has ended, or its host cannot be reached. Its own output may tell why.";
}

// False: not before the deadline.
bool Endpoint::meet_later(int process, const Deadline& deadline, BackgroundThreads::For whom,
                          const std::function<void()>& check) {
  Peer& peer = peer_of(process);
  if (has_met(process)) return true;
  if (is_forked()) throw Error("lockstep: a forked child has no connections of its own.");
  want(process, whom);
  for (;;) {
    const Connection* const own = peer.connection.load();
    if (own != nullptr && progress_.has_connected(process)) break;
    if (own != nullptr && is_closed(own->fd())) throw Error(has_ended(process));
    if (stopped_.load() != 0) throw Error("lockstep: this process has ended.");
    {
      std::lock_guard lock(peer.mutex);
      if (!peer.is_wanted && peer.is_refused) throw Refused(peer.failure);
      if (!peer.is_wanted) throw Error(peer.failure);
    }
    check();
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kCheckInterval);
  }
  peer.is_met.store(true, std::memory_order_release);
  return true;
}

// Asks for a connection and does not wait for it. Called by a rank, by the watchdog, or by the
// progress thread when the other process has connected.
void Endpoint::want(int process, BackgroundThreads::For whom) {
  Peer& peer = peer_of(process);
  std::lock_guard lock(peer.mutex);
  // A connection that only a watchdog has wanted may come late, so the program asks for it again.
  const bool comes_sooner = whom == BackgroundThreads::kProgram && !peer.is_urgent;
  if (peer.is_begun || (peer.is_wanted && !comes_sooner)) return;
  background_.add([this, process] { connect_later(process); }, whom);
  peer.is_wanted = true;
  peer.is_urgent = whom == BackgroundThreads::kProgram;
}

// Tries for as long as it takes: those that wait have deadlines of their own, or none.
void Endpoint::connect_later(int process) noexcept {
  Peer& peer = peer_of(process);
  {
    std::lock_guard lock(peer.mutex);
    if (std::exchange(peer.is_begun, true)) return;
    peer.is_wanted = true;  // also where the first one of two has failed
  }
  const Limit limit{Clock::time_point::max(), [this, process] {
                      if (Clock::now().time_since_epoch().count() >= connects_until_.load())
                        throw Error("lockstep: this process ends.");
                      if (is_lost(process)) throw Error(has_ended(process));
                    }};
  const auto give_up = [&](const std::exception& error) noexcept {
    std::lock_guard lock(peer.mutex);
    // The next one that needs the connection tries again.
    peer.is_wanted = peer.is_begun = peer.is_urgent = peer.connection.load() != nullptr;
    peer.is_refused = dynamic_cast<const Refused*>(&error) != nullptr;
    try {
      peer.failure = error.what();
    } catch (const std::bad_alloc&) {
      peer.failure.clear();
    }
  };
  for (;;) {
    try {
      auto first = open(process, 0, limit);
      for (std::uint32_t which = 1; which < connections_to(process); ++which)
        first->further.push_back(open(process, which, limit));
      publish(process, std::move(first));
      if (--num_deferred_ == 0) progress_.close_when_met();
      return;
    } catch (const Refused& error) {
      progress_.lose_agent(process);
      return give_up(error);
    } catch (const Denied& error) {
      return give_up(error);
    } catch (const std::exception& error) {
      if (!awaits_answer(process)) {
        progress_.lose_agent(process);
        return give_up(error);
      }
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
}

// Whether that process has connected and has no answer yet: then what failed, perhaps for want of a
// descriptor or of memory, is tried again.
bool Endpoint::awaits_answer(int process) {
  const bool ends = Clock::now().time_since_epoch().count() >= connects_until_.load();
  return peer_of(process).connection.load() == nullptr && progress_.has_greeted(process) && !ends &&
         !arena_->aborted() && !is_lost(process) && has_left(process) == 0;
}

// Runs on the progress thread. The process that aborts a job reports it to the processes to which
// it has connections, and so does each that shares memory with it.
void Endpoint::relay_abort() {
  if (defers_ && !has_reported_abort_)
    background_.add([this] { report_abort(); }, BackgroundThreads::kAbort);
}

}  // namespace lockstep
