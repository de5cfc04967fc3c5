// The control messages that an endpoint sends and takes: see endpoint.h.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "control/network/endpoint.h"

namespace lockstep {
namespace {

// The pause after each part. A thread that waits for the send lock tries more often, and gets it.
constexpr std::chrono::microseconds kBetweenParts{200};

// Deadline takes 0 for never.
Deadline deadline_in(double seconds) {
  return Deadline(std::max(std::chrono::duration<double>(bounded(seconds)).count(), 1e-9));
}

}  // namespace

// A process whose program has ended still takes messages: its watchdog answers while it waits for
// others. A forked child sends none: threads that it does not have may hold the locks.
bool Endpoint::takes_control(int process) const {
  const bool known = process >= 0 && static_cast<std::size_t>(process) < peers_.size();
  return known && reaches(process) && !is_forked() && !control_over_ && !is_lost(process);
}

Endpoint::Connecting Endpoint::connect(int process) {
  if (is_connected(process)) return Connecting::kDone;
  if (!takes_control(process) || !peer_of(process).is_deferred) return Connecting::kNever;
  Peer& peer = peer_of(process);
  const Connection* const own = peer.connection.load();
  if (own != nullptr && is_closed(own->fd())) {
    progress_.lose_agent(process);
    return Connecting::kNever;
  }
  {
    std::lock_guard lock(peer.mutex);
    if (!peer.is_wanted && peer.is_refused) return Connecting::kNever;
  }
  want(process, BackgroundThreads::kWatchdog);
  return Connecting::kBegun;
}

bool Endpoint::is_connected(int process) {
  if (!takes_control(process)) return false;
  return has_met(process) ||
         (peer_of(process).connection.load() != nullptr && progress_.has_connected(process));
}

// Connects to the process if that is yet to be done.
bool Endpoint::is_in_reach(int process, const Deadline& deadline) {
  try {
    return meet_later(process, deadline, BackgroundThreads::kWatchdog, [] {});
  } catch (const Error&) {
    return false;
  }
}

bool Endpoint::send_control(int process, std::span<const std::byte> bytes, double timeout_seconds) {
  if (bytes.size() > ControlMessages::kMaxLength || !takes_control(process)) return false;
  const Deadline deadline = deadline_in(timeout_seconds);
  if (!is_in_reach(process, deadline)) return false;
  Connection& connection = *peer_of(process).connection.load();
  const auto whole = connection.lock_message(deadline);
  if (!whole.owns_lock()) return false;
  // An agent's messages are about the failed job; a process ends and does not wait for them.
  const auto& abort = progress_.is_agent(process_) ? kNeverAborted : arena_->header().abort_state;
  const WaitLimits limits{&abort, deadline, {}, nullptr, nullptr, &stopped_};
  for (std::size_t at = 0;;) {
    const auto part = bytes.subspan(at, std::min(ControlMessages::kPart, bytes.size() - at));
    const Frame frame{.kind = Frame::kControl,
                      .clique = bytes.size(),
                      .number = static_cast<std::uint32_t>(at),
                      .bytes = static_cast<std::uint32_t>(part.size())};
    if (!takes_control(process) || !connection.send_part(frame, part, limits)) return false;
    at += part.size();
    std::this_thread::sleep_for(kBetweenParts);
    if (at == bytes.size()) return true;
  }
}

ControlMessage Endpoint::next_control(double timeout_seconds) {
  if (is_forked()) return {ControlMessage::kOver, {}};
  return progress_.control().next(timeout_seconds);
}

void Endpoint::end_control() {
  if (is_forked()) return;
  control_over_ = true;
  progress_.control().close();
}

}  // namespace lockstep
