// One collective of one process (see collective_context.h).
#include "core/collective_context.h"

#include <algorithm>

#include "base/error.h"
#include "core/job.h"
#include "recorder/tsc_clock.h"

namespace lockstep {

CollectiveContext::CollectiveContext(Clique& clique, std::span<const Call* const> calls,
                                     std::uint32_t sequence)
    : clique_(clique),
      calls_(calls),
      signature_(signature_of(*calls[0], sequence)),
      limits_{&clique.job().arena().header().abort_state,
              Deadline(clique.job().timeout_seconds(), calls[0]->entered),
              clique.job().process_spin(), &clique.job().wake_up()},
      first_(clique.locals().size() > 1 ? clique.partials(clique.local_self()).next() : 0) {
  if (clique.job().arena().aborted()) throw Error(clique.job().arena().abort_text());
  // The siblings have arrived; that of the peers may follow.
  if (calls.size() > 1 && calls[0]->record.entry != nullptr) {
    const auto now = TscClock::now();
    for (const Call* call : calls) Recorder::arrived(call->record, now);
  }
}

void CollectiveContext::all_arrived() {
  if (std::exchange(all_arrived_, true)) return;
  if (calls_[0]->record.entry == nullptr) return;  // no device of this process has a recorder
  const auto now = TscClock::now();
  for (const Call* call : calls_) Recorder::arrived(call->record, now);
}

std::byte* CollectiveContext::acquire(BroadcastRing& ring) {
  while (Counter* reader = ring.blocked_by())
    wait(*reader, ring.free_target(), peer_of(ring.index_of(reader)));
  return ring.payload();
}

const std::byte* CollectiveContext::await(BroadcastRing& ring) {
  const bool waits = !ring.written().reached(ring.next() + 1);
  const int peer = peer_of(ring.writer());
  wait(ring.written(), ring.next() + 1, peer);
  check(ring.signature(), peer);
  // The first messages of a collective are its first awaits, one for each local peer. The last of
  // them to be awaited may be there already, though an earlier one was waited for.
  if (arrived_ < locals() - 1) {
    waited_ |= waits;
    if (++arrived_ == locals() - 1 && waited_ && clique_.hosts().size() == 1) all_arrived();
  }
  return ring.payload();
}

std::vector<const std::byte*> CollectiveContext::await_partials(const std::byte* own) {
  std::vector<const std::byte*> all;
  for (int local = 0; local < locals(); ++local)
    all.push_back(local == local_self() ? own : await(clique_.partials(local)));
  return all;
}

void CollectiveContext::release_partials() {
  for (int local = 0; local < locals(); ++local)
    if (local != local_self()) clique_.partials(local).release();
}

void CollectiveContext::send(int peer, std::span<const std::byte> payload) {
  Link& link = clique_.link(peer);
  wait(link.released(), link.free_target(), peer);
  link.send(signature_, payload, limits_);
}

const std::byte* CollectiveContext::receive(int peer) {
  Link& link = clique_.link(peer);
  wait(link.written(), link.next() + 1, peer);
  check(link.signature(), peer);
  link.note_received(signature_.sequence);
  return link.payload();
}

void CollectiveContext::release(int peer) { clique_.link(peer).release(limits_); }

bool CollectiveContext::post_receive(int peer, std::span<std::byte> to) {
  if (std::ranges::find(posted_, peer) == posted_.end()) posted_.push_back(peer);
  return clique_.link(peer).post_receive(to);
}

CollectiveContext::~CollectiveContext() {
  for (const int peer : posted_) clique_.link(peer).withdraw();
}

void CollectiveContext::check(const Signature& theirs, int peer) {
  if (theirs.agrees(signature_)) return;
  Job& job = clique_.job();
  const int process = clique_.group(peer).process;
  if (theirs.same_call(signature_) && job.may_meet(signature_.origin, process, theirs.origin))
    return;
  throw Divergence("lockstep: the processes are in different collectives on " + clique_.describe() +
                   ": " + job.label(job.process()) + " called " + lockstep::describe(signature_) +
                   "; " + job.label(process) + " called " + lockstep::describe(theirs) +
                   hint_of(signature_, theirs));
}

bool CollectiveContext::single_copy(std::size_t bytes) {
  if (bytes == 0 || bytes < clique_.job().single_copy_from()) return false;
  auto& known = clique_.single_copy();
  if (!known) known = agree_on_single_copy();
  return *known;
}

bool CollectiveContext::agree_on_single_copy() {
  // A process that is here has started, and can be read if that is permitted.
  all_agree(true);
  bool all = true;
  for (const int peer : clique_.locals()) {
    const int process = clique_.group(peer).process;
    all = clique_.job().transport(process).can_read(process) && all;
  }
  return all_agree(all);
}

bool CollectiveContext::all_agree(bool mine) {
  bool all = mine;
  send_partials([&](std::byte* slot) { *slot = std::byte{mine}; });
  take_partials([&](int, const std::byte* theirs) { all = *theirs != std::byte{0} && all; });
  return all;
}

void CollectiveContext::read(int local, std::span<const MemoryPiece> pieces) {
  const int process = clique_.group(peer_of(local)).process;
  clique_.job().transport(process).read(process, pieces);
}

void CollectiveContext::drain(BroadcastRing& ring) {
  while (Counter* reader = ring.unread_by())
    wait(*reader, ring.read_target(), peer_of(ring.index_of(reader)));
}

void CollectiveContext::wait(Counter& counter, std::uint32_t target, int peer) {
  if (counter.reached(target)) return;
  Job& job = clique_.job();
  const int process = clique_.group(peer).process;
  limits_.left = job.has_left(process);
  switch (job.transport(process).wait(counter, target, limits_, calls_[0]->bytes())) {
    case WaitResult::kReached:
      return;
    case WaitResult::kAborted:
      throw Error(job.arena().abort_text());
    case WaitResult::kLeft:
      give_up_on(peer);
    case WaitResult::kDeadline:
      give_up(peer);
  }
}

void CollectiveContext::give_up_on(int peer) {
  Job& job = clique_.job();
  throw Error(job.has_ended(clique_.group(peer).process,
                            lockstep::describe(signature_) + " on " + clique_.describe()));
}

// Whether a process of another host has sent something; true of one of this host.
bool CollectiveContext::has_received(int peer) const {
  return clique_.group(peer).host == clique_.self_host() ||
         clique_.link(peer).has_received(signature_.sequence);
}

// The peers that are known to have sent nothing in this collective. A process of another host may
// itself wait for a third one before it sends, so only where there is no third one it is known.
std::string CollectiveContext::not_arrived(int peer) const {
  const Job& job = clique_.job();
  constexpr int kNamed = 8;  // the text has to fit into an exception
  std::string missing;
  int count = 0;
  const auto add = [&](int one) {
    if (++count <= kNamed)
      missing += (missing.empty() ? "" : ", ") + job.label(clique_.group(one).process);
  };
  for (int local = 0; local < locals(); ++local)
    if (local != local_self() && !clique_.partials(local).written().reached(first_ + 1))
      add(peer_of(local));
  if (clique_.groups().size() == 2 && !has_received(peer)) add(peer);
  return count > kNamed ? missing + " and " + std::to_string(count - kNamed) + " more" : missing;
}

void CollectiveContext::give_up(int peer) {
  Job& job = clique_.job();
  const int process = clique_.group(peer).process;
  const std::string missing = not_arrived(peer);
  std::string text = "lockstep: " + lockstep::describe(signature_) + " on " + clique_.describe() +
                     ": " + job.label(job.process()) + " waited " + job.timeout_text() + ". ";
  if (!missing.empty())
    text += "Not arrived: " + missing + ".";
  else if (!has_received(peer))
    text += "Nothing has come from " + job.label(process) +
            ": it has not arrived, or waits for another process.";
  else if (clique_.groups().size() == 2)
    text += job.label(process) + " arrived but stopped in the middle of it.";
  else
    text += job.label(process) +
            " arrived; it has stopped in the middle of it, or waits for another process.";
  if (missing.empty()) text += job.transport(process).in_flight(process);
  throw Error(job.timed_out(
      text + " --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) sets the limit; 0 means none."));
}

}  // namespace lockstep
