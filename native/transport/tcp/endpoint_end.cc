// What an endpoint says when its program or its job ends, and how it stops: see endpoint.h.
#include <atomic>
#include <chrono>
#include <exception>
#include <span>
#include <string>

#include "transport/tcp/endpoint.h"

namespace lockstep {

std::uint64_t Endpoint::of_companion(std::uint32_t kind, std::size_t process) const {
  return companion_ == nullptr || kind != Frame::kLeave
             ? 0
             : companion_->sent_to(static_cast<int>(process));
}

// Best effort: an unreachable peer detects the failure itself. The word that this process leaves
// goes behind whatever a connection carries: on each of them.
void Endpoint::broadcast(std::uint32_t kind, std::span<const std::byte> body) {
  if (abandoned_) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with that of `publish`
  for (int process = 0; process < static_cast<int>(peers_.size()); ++process)
    if (peer_of(process).connection.load() != nullptr) send_word(process, kind, body);
}

void Endpoint::send_word(int process, std::uint32_t kind, std::span<const std::byte> body) {
  const WaitLimits limits{&arena_->header().abort_state,
                          Deadline(std::chrono::duration<double>(send_grace_).count()),
                          {}};
  const Frame frame{.kind = kind, .clique = of_companion(kind, static_cast<std::size_t>(process))};
  Connection& first = *peer_of(process).connection.load();
  first.send(frame, {}, body, limits);
  if (kind != Frame::kLeave) return;
  for (auto& further : first.further) further->send(frame, {}, body, limits);
}

// It may be by another process of this host, whose own message is late.
void Endpoint::tell_abort() noexcept {
  if (progress_.is_agent(process_)) return;
  try {
    const std::string text = arena_->abort_text();
    broadcast(Frame::kAbort, std::as_bytes(std::span(text)));
    has_told_abort_ = true;
  } catch (const std::exception&) {  // no memory: as if the others could not be reached
  }
}

void Endpoint::leave() {
  if (has_left_.exchange(true)) return;
  progress_.set_program_ended();
  progress_.deferred_abort().set_left();
  if (arena_->aborted()) tell_abort();
  if (companion_ != nullptr && !is_forked()) companion_->flush();
  broadcast(Frame::kLeave, {});
  // The process may end without `stop`.
  if (!is_forked()) background_.wait(Clock::now() + send_grace_);
}

void Endpoint::stop() {
  if (is_forked()) return;  // the threads are its parent's
  if (companion_ != nullptr) companion_->stop();
  if (arena_->aborted() && !has_told_abort_) tell_abort();
  stop_connecting();
  stopped_.store(1);
  end_control();
  progress_.stop();
  const Deadline deadline(std::chrono::duration<double>(send_grace_).count());
  for_each_connection([&](Connection& connection) { connection.stop(deadline); });
}

// What has begun may still be said: the others may have accepted these connections.
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
