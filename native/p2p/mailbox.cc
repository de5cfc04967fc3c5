#include "p2p/mailbox.h"

#include <string>

#include "base/error.h"
#include "core/job.h"

namespace lockstep {
namespace {

// Numbers of channels; those of the clique's broadcast rings are smaller.
constexpr std::uint32_t kFirstChannel = 1u << 31;

}  // namespace

Mailbox::Mailbox(Clique& clique)
    : clique_(clique),
      ranks_(0),
      wake_ups_(reinterpret_cast<Counter*>(clique.pair_memory())),
      group_of_(static_cast<std::size_t>(clique.size())),
      local_of_(group_of_.size(), kElsewhere) {
  const auto& groups = clique.groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const int rank : groups[group].ranks)
      group_of_[static_cast<std::size_t>(rank)] = static_cast<int>(group);
  for (const int group : clique.locals())
    for (const int rank : clique.group(group).ranks)
      local_of_[static_cast<std::size_t>(rank)] = static_cast<int>(ranks_++);
  offsets_ = reinterpret_cast<std::atomic<std::uint64_t>*>(wake_ups_ + ranks_);
  const std::size_t own = clique.group(clique.self()).ranks.size();
  for (std::size_t i = 0; i < own * own; ++i) queues_.push_back(std::make_unique<LocalQueue>());
  rings_.resize(own * group_of_.size() * 2);
}

bool Mailbox::same_process(int a, int b) const {
  return group_of_[static_cast<std::size_t>(a)] == group_of_[static_cast<std::size_t>(b)];
}

int Mailbox::process_of(int rank) const {
  return clique_.group(group_of_[static_cast<std::size_t>(rank)]).process;
}

LocalQueue& Mailbox::local_queue(int self, const Request& request) {
  const bool sends = request.kind == Request::kSend;
  const int source = clique_.member_of(sends ? self : request.peer);
  const int target = clique_.member_of(sends ? request.peer : self);
  const std::size_t own = clique_.group(clique_.self()).ranks.size();
  return *queues_[static_cast<std::size_t>(source) * own + static_cast<std::size_t>(target)];
}

PairRing* Mailbox::pair_ring(int self, const Request& request) {
  const auto member = static_cast<std::size_t>(clique_.member_of(self));
  const std::size_t row = member * group_of_.size() + static_cast<std::size_t>(request.peer);
  auto& ring = rings_[2 * row + (request.kind == Request::kSend ? 1 : 0)];
  if (ring == nullptr) ring = make_ring(self, request);
  return ring.get();
}

std::unique_ptr<PairRing> Mailbox::make_ring(int self, const Request& request) {
  const bool sends = request.kind == Request::kSend;
  const int source = sends ? self : request.peer, target = sends ? request.peer : self;
  const int process = process_of(request.peer);
  Transport& transport = clique_.job().transport(process);
  const bool shared = is_local(request.peer);
  const std::size_t slot = shared ? PairRing::kSharedSlot : clique_.link_capacity();
  std::byte* memory =
      shared ? shared_memory(source, target, sends)
             : transport.allocate_copy(PairRing::footprint(PairRing::kRemoteSlots, slot));
  if (memory == nullptr) return nullptr;
  const auto pair = static_cast<std::uint32_t>(source * clique_.size() + target);
  return std::make_unique<PairRing>(request.kind, PairRing::Ring{memory, slot, shared}, transport,
                                    ChannelId{clique_.id(), kFirstChannel + pair, process},
                                    wake_up(self), shared ? &wake_up(request.peer) : nullptr);
}

std::byte* Mailbox::shared_memory(int source, int target, bool make) {
  Arena& arena = clique_.job().arena();
  auto& offset = offsets_[static_cast<std::size_t>(local(source)) * ranks_ +
                          static_cast<std::size_t>(local(target))];
  std::uint64_t found = offset.load(std::memory_order_acquire);
  if (found == 0 && make) {
    found = arena.allocate(PairRing::footprint(PairRing::kSharedSlots, PairRing::kSharedSlot));
    offset.store(found, std::memory_order_release);
  }
  return found == 0 ? nullptr : arena.at(found);
}

void Mailbox::progress(int self, Request& request) {
  if (request.complete.load(std::memory_order_acquire)) return;
  const bool sends = request.kind == Request::kSend;
  if (same_process(self, request.peer)) {
    LocalQueue& queue = local_queue(self, request);
    if (sends ? queue.send(request) : queue.receive(self, request, *this))
      wake_up(request.peer).advance();
  } else if (PairRing* ring = pair_ring(self, request)) {
    sends ? ring->send(request, clique_.job().single_message_from())
          : ring->receive(self, request, *this);
  }
}

void Mailbox::withdraw(int self, Request& request) {
  if (request.posted != 0) return pair_ring(self, request)->withdraw();
  if (request.kind != Request::kSend || !request.started) return;
  if (same_process(self, request.peer)) return local_queue(self, request).withdraw(request);
  // The receiver reads the buffer or is about to, and trusts its bytes while the job is healthy.
  pair_ring(self, request)->send(request, clique_.job().single_message_from());
  if (!request.complete.load(std::memory_order_relaxed))
    clique_.job().arena().abort("lockstep: collective-permute on " + clique_.describe() +
                                ": rank " + std::to_string(self) + " left before rank " +
                                std::to_string(request.peer) + " had its message.");
}

void Mailbox::check(int self, const Request& request, std::size_t bytes, const Origin& origin) {
  Job& job = clique_.job();
  const auto device = [&](int rank) {
    const int id = clique_.devices()[static_cast<std::size_t>(rank)];
    return "device " + std::to_string(id) + " of " + job.label(job.process_of(id));
  };
  if (bytes != request.bytes)
    throw Divergence("lockstep: collective-permute on " + clique_.describe() + ": " +
                     device(request.peer) + " sends " + std::to_string(bytes) + " bytes, " +
                     device(self) + " expects " + std::to_string(request.bytes) + ".");
  if (origin.agrees(request.origin)) return;
  if (!same_process(self, request.peer) &&
      job.may_meet(request.origin, process_of(request.peer), origin))
    return;
  throw Divergence("lockstep: collective-permute on " + clique_.describe() + ": " +
                   device(request.peer) + " sends " + std::to_string(bytes) + " bytes to " +
                   device(self) +
                   ", which expects as many, but of another program or another execution of one: "
                   "the processes run their programs in different orders. "
                   "LOCKSTEP_CHECK_PROGRAMS=0 lets such calls meet.");
}

}  // namespace lockstep
