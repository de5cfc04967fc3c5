#include "p2p/port.h"

#include <algorithm>
#include <string>

#include "base/copy.h"
#include "base/error.h"
#include "core/clique.h"
#include "core/job.h"
#include "p2p/mailbox.h"

namespace lockstep {

Port::Port(Clique& clique, int rank)
    : clique_(clique), mailbox_(clique.attached<Mailbox>()), rank_(rank) {}

Request* Port::add(Request::Kind kind, int peer, const std::byte* from, std::byte* to,
                   std::size_t bytes, const Origin& origin) {
  auto request = std::make_unique<Request>();
  request->kind = kind;
  request->peer = peer;
  request->from = from;
  request->to = to;
  if (to != nullptr) ask_for_huge_pages(to, bytes);
  request->bytes = bytes;
  request->origin = origin;
  Request* added = pending_.emplace_back(std::move(request)).get();
  guarded([&] {
    if (peer < 0 || peer >= clique_.size())
      throw Error("lockstep: collective-permute names rank " + std::to_string(peer) + " of " +
                  clique_.describe() + ".");
    // A receive moves nothing before its wait: reading a large message here would hold up the sends
    // that this rank has yet to start, and two ranks would read one after the other.
    if (kind == Request::kSend && !behind_another(pending_.size() - 1))
      mailbox_.progress(rank_, *added);
  });
  return added;
}

Request* Port::send(int target, const std::byte* data, std::size_t bytes, const Origin& origin) {
  return add(Request::kSend, target, data, nullptr, bytes, origin);
}

Request* Port::receive(int source, std::byte* data, std::size_t bytes, const Origin& origin) {
  return add(Request::kReceive, source, nullptr, data, bytes, origin);
}

void Port::wait(Request* request) {
  Job& job = clique_.job();
  Counter& wake_up = mailbox_.wake_up(rank_);
  WaitLimits limits{&job.arena().header().abort_state, Deadline(job.timeout_seconds()),
                    job.process_spin(), &job.wake_up()};
  guarded([&] {
    // A failure ended all requests of this rank, this one too.
    if (std::ranges::find(pending_, request, &std::unique_ptr<Request>::get) == pending_.end())
      throw Error(job.arena().abort_text());
    const int peer = mailbox_.process_of(request->peer);
    limits.left = job.has_left(peer);
    for (;;) {
      const std::uint32_t seen = wake_up.load();
      const bool moved = progress();
      if (request->complete.load(std::memory_order_acquire)) return;
      if (moved) continue;  // a send may have stopped although there was room
      const WaitResult result =
          job.transport(peer).wait(wake_up, seen + 1, limits, Transport::kAlsoOthers);
      if (result == WaitResult::kAborted) throw Error(job.arena().abort_text());
      if (result == WaitResult::kDeadline) give_up(*request);
      if (result == WaitResult::kLeft)
        throw Error(job.has_ended(peer, "collective-permute on " + clique_.describe()));
    }
  });
  std::erase_if(pending_, [&](const auto& pending) { return pending.get() == request; });
}

bool Port::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (behind_another(i)) continue;
    Request& request = *pending_[i];
    const std::size_t before = request.moved;
    mailbox_.progress(rank_, request);
    moved = moved || request.moved != before;
  }
  return moved;
}

template <typename Step>
void Port::guarded(Step step) {
  std::string text;
  try {
    return step();
  } catch (const Divergence& error) {
    text = clique_.job().diverged(error.what());
  } catch (const Late& error) {
    text = clique_.job().timed_out(error.what());
  } catch (const Error& error) {
    text = clique_.job().failed(error.what());
  }
  forget_all();
  throw Error(text);
}

void Port::forget_all() {
  for (auto& pending : pending_) mailbox_.withdraw(rank_, *pending);
  pending_.clear();
}

bool Port::behind_another(std::size_t index) const {
  const Request& request = *pending_[index];
  for (std::size_t i = 0; i < index; ++i) {
    const Request& older = *pending_[i];
    // A started send is in the queue of its pair, which keeps the order.
    if (older.kind == request.kind && older.peer == request.peer && !older.started &&
        !older.complete.load(std::memory_order_acquire))
      return true;
  }
  return false;
}

void Port::give_up(const Request& request) {
  Job& job = clique_.job();
  const int device = clique_.devices()[static_cast<std::size_t>(request.peer)];
  const int process = job.process_of(device);
  const std::string peer = "device " + std::to_string(device) + " of " + job.label(process);
  throw Error(job.timed_out(
      "lockstep: collective-permute of " + std::to_string(request.bytes) + " bytes on " +
      clique_.describe() + ": device " +
      std::to_string(clique_.devices()[static_cast<std::size_t>(rank_)]) + " of " +
      job.label(job.process()) + " waited " + job.timeout_text() + " for " + peer + " to " +
      (request.kind == Request::kSend ? "receive" : "send") + ". Not arrived: " + peer + "." +
      job.transport(process).in_flight(process) +
      " --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) sets the limit; 0 means none."));
}

}  // namespace lockstep
