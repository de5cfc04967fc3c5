// What an endpoint reports when its program or its job ends, and how it stops: see endpoint.h.
#include <atomic>
#include <chrono>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/network/endpoint.h"

namespace lockstep {

std::uint64_t Endpoint::of_companion(std::uint32_t kind, std::size_t process) const {
  return companion_ == nullptr || kind != Frame::kLeave
             ? 0
             : companion_->sent_to(static_cast<int>(process));
}

// The notice that this process leaves follows all that it has sent, so each connection carries one.
void Endpoint::add_notices(std::vector<Connection::Notice>& notices, int process,
                           std::uint32_t kind) const {
  Connection* const first = peer_of(process).connection.load();
  if (first == nullptr) return;
  const Frame frame{.kind = kind, .clique = of_companion(kind, static_cast<std::size_t>(process))};
  notices.push_back({first, frame});
  if (kind != Frame::kLeave) return;
  for (const auto& further : first->further) notices.push_back({further.get(), frame});
}

std::vector<Connection::Notice> Endpoint::notices_to_all(std::uint32_t kind) const {
  std::vector<Connection::Notice> notices;
  if (abandoned_) return notices;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with that of `publish`
  for (int process = 0; process < static_cast<int>(peers_.size()); ++process)
    add_notices(notices, process, kind);
  return notices;
}

void Endpoint::send_notices(std::vector<Connection::Notice> notices, std::string_view text) {
  Connection::send_notices(std::move(notices), std::as_bytes(std::span(text)),
                           arena_->header().abort_state, send_grace_);
}

// Best effort: an unreachable peer detects the failure itself. The abort may be by another process
// of this host, whose own message is late.
//
// It is sent by the thread that aborts the job, because the process may exit next. A thread that
// reads for this process goes on reading, and a background thread sends what no peer takes yet.
void Endpoint::report_abort() noexcept {
  if (progress_.is_agent(process_)) return;
  has_reported_abort_ = true;
  try {
    const std::string text = arena_->abort_text();
    auto notices = notices_to_all(Frame::kAbort);
    if (!progress_.reads_on_this_thread()) return send_notices(std::move(notices), text);
    const auto bytes = std::as_bytes(std::span(text));
    if (!Connection::try_notices(notices, bytes, arena_->header().abort_state))
      background_.add([this, notices, text] { send_notices(notices, text); },
                      BackgroundThreads::kAbort);
  } catch (const std::exception&) {  // no memory: as if the others could not be reached
    has_reported_abort_ = false;
  }
}

void Endpoint::leave() {
  if (has_left_.exchange(true)) return;
  progress_.set_program_ended();
  progress_.deferred_abort().set_left();
  if (arena_->aborted()) report_abort();
  if (companion_ != nullptr && !is_forked()) companion_->flush();
  send_notices(notices_to_all(Frame::kLeave), {});
  // The process may end without `stop`.
  if (!is_forked()) background_.wait(Clock::now() + send_grace_);
}

void Endpoint::stop() {
  if (is_forked()) return;  // the threads are its parent's
  if (companion_ != nullptr) companion_->stop();
  if (arena_->aborted() && !has_reported_abort_) report_abort();
  stop_connecting();
  stopped_.store(1);
  end_control();
  progress_.stop();
  const Deadline deadline(std::chrono::duration<double>(send_grace_).count());
  for_each_connection([&](Connection& connection) { connection.stop(deadline); });
}

// Connections that are being made get a grace period: the others may have accepted them.
void Endpoint::stop_connecting() {
  connects_until_.store((Clock::now() + send_grace_).time_since_epoch().count());
  background_.stop();
}

void Endpoint::abandon() {
  abandoned_ = true;
  for_each_connection([](Connection& connection) { connection.abandon(); });
  background_.abandon();
  progress_.abandon();
}

}  // namespace lockstep
