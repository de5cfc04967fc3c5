// One collective of one process (see clique.h).
#include "core/clique.h"
#include "core/error.h"
#include "core/job.h"
#include "recorder/tsc_clock.h"

namespace lockstep {

Exchange::Exchange(Clique& clique, std::span<const Call* const> calls, std::uint32_t sequence)
    : clique_(clique),
      calls_(calls),
      signature_(signature_of(*calls[0], sequence)),
      watch_{&clique.world().arena().header().abort_state,
             Deadline(clique.world().timeout_seconds(), calls[0]->entered),
             clique.world().process_spin(), &clique.world().alarm()},
      first_(clique.groups().size() > 1 ? clique.partials(clique.self()).next() : 0) {
  if (clique.world().arena().aborted()) throw Error(clique.world().arena().abort_text());
  if (calls.size() > 1) record_arrival();  // of the siblings; that of the peers may follow
}

void Exchange::record_arrival() {
  if (calls_[0]->record.entry == nullptr) return;  // no device of this process has a recorder
  const auto now = QuickClock::now();
  for (const Call* call : calls_) Recorder::arrived(call->record, now);
}

std::byte* Exchange::acquire(Lane& lane) {
  while (Counter* reader = lane.blocked_by())
    wait(*reader, lane.free_target(), lane.index_of(reader));
  return lane.payload();
}

const std::byte* Exchange::await(Lane& lane) {
  const bool waits = !lane.written().reached(lane.next() + 1);
  wait(lane.written(), lane.next() + 1, lane.writer());
  check(lane.signature(), lane.writer());
  // The first messages of a collective are its first awaits, one for each peer.
  if (arrived_ < peers() - 1 && ++arrived_ == peers() - 1 && waits) record_arrival();
  return lane.payload();
}

void Exchange::check(const Signature& theirs, int peer) {
  if (theirs.agrees(signature_)) return;
  World& world = clique_.world();
  const int process = clique_.groups()[static_cast<std::size_t>(peer)].process;
  if (theirs.same_call(signature_) && world.let_through(signature_.origin, process, theirs.origin))
    return;
  throw Divergence("lockstep: the processes are in different collectives on " + clique_.describe() +
                   ": " + world.label(world.process()) + " called " +
                   lockstep::describe(signature_) + "; " + world.label(process) + " called " +
                   lockstep::describe(theirs) + hint_of(signature_, theirs));
}

bool Exchange::single_copy(std::size_t bytes) {
  if (bytes == 0 || bytes < clique_.world().single_copy_from()) return false;
  auto& known = clique_.single_copy();
  if (!known) known = agree_on_single_copy();
  return *known;
}

bool Exchange::agree_on_single_copy() {
  // Who is here has started, and can be read if anybody can.
  tell_all(std::byte{0}, [](std::byte) {});
  bool all = true;
  for (const Group& group : clique_.groups())
    all = clique_.world().peers().readable(group.process) && all;
  tell_all(std::byte{all}, [&](std::byte theirs) { all = theirs != std::byte{0} && all; });
  return all;
}

template <typename Take>
void Exchange::tell_all(std::byte mine, Take take) {
  Lane& own = clique_.partials(self());
  *acquire(own) = mine;
  publish(own, [](int) { return Lane::Part{0, 1}; });
  for (int group = 0; group < peers(); ++group) {
    if (group == self()) continue;
    take(*await(clique_.partials(group)));
    release(clique_.partials(group));
  }
}

void Exchange::read(int group, std::span<const PeerMemory::Piece> pieces) {
  clique_.world().peers().read(clique_.groups()[static_cast<std::size_t>(group)].process, pieces);
}

void Exchange::drain(Lane& lane) {
  while (Counter* reader = lane.unread_by())
    wait(*reader, lane.read_target(), lane.index_of(reader));
}

void Exchange::wait(Counter& counter, std::uint32_t target, int peer) {
  World& world = clique_.world();
  watch_.left = world.has_left(clique_.groups()[static_cast<std::size_t>(peer)].process);
  switch (wait_until(counter, target, watch_)) {
    case WaitResult::kReached:
      return;
    case WaitResult::kAborted:
      throw Error(world.arena().abort_text());
    case WaitResult::kLeft:
      give_up_on(peer);
    case WaitResult::kDeadline:
      give_up(peer);
  }
}

void Exchange::give_up_on(int peer) {
  World& world = clique_.world();
  throw Error(world.has_ended(clique_.groups()[static_cast<std::size_t>(peer)].process,
                              lockstep::describe(signature_) + " on " + clique_.describe()));
}

void Exchange::give_up(int peer) {
  World& world = clique_.world();
  constexpr int kNamed = 8;  // the text has to fit into an exception
  std::string missing;
  int count = 0;
  for (int group = 0; group < peers(); ++group)
    if (group != self() && !clique_.partials(group).written().reached(first_ + 1) &&
        ++count <= kNamed)
      missing += (missing.empty() ? "" : ", ") +
                 world.label(clique_.groups()[static_cast<std::size_t>(group)].process);
  if (count > kNamed) missing += " and " + std::to_string(count - kNamed) + " more";
  std::string text = "lockstep: " + lockstep::describe(signature_) + " on " + clique_.describe() +
                     ": " + world.label(world.process()) + " waited " + world.timeout_text() + ". ";
  if (!missing.empty())
    text += "Not arrived: " + missing + ".";
  else
    text += world.label(clique_.groups()[static_cast<std::size_t>(peer)].process) +
            " arrived but stopped in the middle of it.";
  throw Error(world.timed_out(
      text + " --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) sets the limit; 0 means none."));
}

}  // namespace lockstep
