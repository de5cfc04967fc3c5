// Sending notes. A late one must not cost the job its connection: what it leaves half sent stays
// with the connection, and goes out before what is sent next.
#include <algorithm>
#include <chrono>
#include <thread>

#include "transport/tcp/endpoint.h"

namespace lockstep {
namespace {

// After each part: who waits for the turn looks more often than that, and gets it.
constexpr std::chrono::microseconds kBetweenParts{200};

const std::atomic<std::uint32_t> kNever{0};

// Deadline takes 0 for never.
Deadline deadline_in(double seconds) {
  return Deadline(std::max(std::chrono::duration<double>(bounded(seconds)).count(), 1e-9));
}

}  // namespace

// Whose program has ended still does: its end may wait for ours, and its watcher answers. Not in a
// forked child, where locks may be held by threads that it does not have.
bool Network::takes_notes(int process) const {
  const bool known = process >= 0 && static_cast<std::size_t>(process) < connections_.size();
  return known && is_elsewhere(process) && !is_forked() && !notes_over_ && !is_lost(process);
}

bool Network::send_note(int process, std::span<const std::byte> bytes, double timeout_seconds) {
  if (bytes.size() > Notes::kLongest || !takes_notes(process)) return false;
  const Deadline deadline = deadline_in(timeout_seconds);
  Connection& connection = *connections_[static_cast<std::size_t>(process)];
  std::unique_lock whole(connection.note, std::defer_lock);
  if (!lock(whole, deadline)) return false;
  for (std::size_t at = 0;;) {
    const auto part = bytes.subspan(at, std::min(Notes::kPart, bytes.size() - at));
    const Frame frame{.kind = Frame::kNote,
                      .clique = bytes.size(),
                      .number = static_cast<std::uint32_t>(at),
                      .bytes = static_cast<std::uint32_t>(part.size())};
    if (!takes_notes(process) || !send_part(connection, frame, part, deadline)) return false;
    at += part.size();
    std::this_thread::sleep_for(kBetweenParts);
    if (at == bytes.size()) return true;
  }
}

bool Network::send_part(Connection& connection, Frame frame, std::span<const std::byte> part,
                        const Deadline& deadline) {
  // A failed job is what an agent's notes are about; a process is to end, and not to wait for them.
  const auto& abort = reader_.is_agent(process_) ? kNever : arena_->header().abort_state;
  const Watch watch{&abort, deadline, {}, nullptr, nullptr, &stopped_};
  std::unique_lock turn(connection.turn, std::defer_lock);
  if (!lock(turn, deadline) || connection.broken) return false;
  Written how = write_unsent(connection, watch);
  if (how == Written::kAll) {
    const auto head = std::as_bytes(std::span(&frame, 1));
    connection.unsent.reserve(head.size() + part.size());
    connection.unsent.assign(head.begin(), head.end());
    connection.unsent.insert(connection.unsent.end(), part.begin(), part.end());
    how = write_unsent(connection, watch);
  }
  if (how == Written::kBroken) cut_off(connection);
  return how == Written::kAll;
}

Network::Written Network::write_unsent(Connection& connection, const Watch& watch) {
  std::vector<std::byte>& unsent = connection.unsent;
  std::span<const std::byte> left = unsent;
  const Written how = write(connection, left, watch);
  if (left.empty())
    std::vector<std::byte>().swap(unsent);
  else
    unsent.erase(unsent.begin(), unsent.end() - static_cast<std::ptrdiff_t>(left.size()));
  return how;
}

Note Network::next_note(double timeout_seconds) {
  if (is_forked()) return {Note::kOver, {}};
  return reader_.notes().next(timeout_seconds);
}

void Network::end_notes() {
  if (is_forked()) return;
  notes_over_ = true;
  reader_.notes().close();
}

}  // namespace lockstep
