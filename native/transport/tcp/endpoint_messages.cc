// Sending control messages. A late message must not cost the job its connection: what is left half
// sent stays with the connection, and goes out before the next frame.
#include <algorithm>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "transport/tcp/endpoint.h"

namespace lockstep {
namespace {

// The pause after each part. A thread that waits for the send lock tries more often, and gets it.
constexpr std::chrono::microseconds kBetweenParts{200};

const std::atomic<std::uint32_t> kNever{0};

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
  if (own != nullptr && is_closed(own->fd.get())) {
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

// Connects to it if that is yet to be done.
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
  std::unique_lock whole(connection.message_lock, std::defer_lock);
  if (!lock(whole, deadline)) return false;
  for (std::size_t at = 0;;) {
    const auto part = bytes.subspan(at, std::min(ControlMessages::kPart, bytes.size() - at));
    const Frame frame{.kind = Frame::kControl,
                      .clique = bytes.size(),
                      .number = static_cast<std::uint32_t>(at),
                      .bytes = static_cast<std::uint32_t>(part.size())};
    if (!takes_control(process) || !send_part(connection, frame, part, deadline)) return false;
    at += part.size();
    std::this_thread::sleep_for(kBetweenParts);
    if (at == bytes.size()) return true;
  }
}

bool Endpoint::send_part(Connection& connection, Frame frame, std::span<const std::byte> part,
                         const Deadline& deadline) {
  // An agent's messages are about the failed job; a process ends and does not wait for them.
  const auto& abort = progress_.is_agent(process_) ? kNever : arena_->header().abort_state;
  const WaitLimits limits{&abort, deadline, {}, nullptr, nullptr, &stopped_};
  std::unique_lock send_lock(connection.send_lock, std::defer_lock);
  if (!lock(send_lock, deadline) || connection.broken) return false;
  WriteResult how = write_unsent(connection, limits);
  if (how == WriteResult::kAll) {
    const auto head = std::as_bytes(std::span(&frame, 1));
    connection.unsent.reserve(head.size() + part.size());
    connection.unsent.assign(head.begin(), head.end());
    connection.unsent.insert(connection.unsent.end(), part.begin(), part.end());
    how = write_unsent(connection, limits);
  }
  if (how == WriteResult::kBroken) break_connection(connection);
  return how == WriteResult::kAll;
}

Endpoint::WriteResult Endpoint::write_unsent(Connection& connection, const WaitLimits& limits) {
  std::vector<std::byte>& unsent = connection.unsent;
  if (unsent.empty()) return WriteResult::kAll;
  const auto [how, bytes] = write(connection, unsent, {}, limits);
  if (bytes == unsent.size())
    std::vector<std::byte>().swap(unsent);
  else
    unsent.erase(unsent.begin(), unsent.begin() + static_cast<std::ptrdiff_t>(bytes));
  return how;
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
