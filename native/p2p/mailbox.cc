#include "p2p/mailbox.h"

#include <string>

#include "core/clique.h"
#include "core/error.h"
#include "core/job.h"

namespace lockstep {
namespace {

// Numbers of channels; those of the clique's broadcast rings are smaller.
constexpr std::uint32_t kFirstChannel = 1u << 31;

}  // namespace

std::size_t Mailbox::footprint(std::size_t ranks) {
  return ranks * sizeof(Counter) + ranks * ranks * sizeof(std::uint64_t);
}

Mailbox::Mailbox(Clique& clique, std::byte* memory)
    : clique_(clique),
      wake_ups_(reinterpret_cast<Counter*>(memory)),
      offsets_(reinterpret_cast<std::atomic<std::uint64_t>*>(wake_ups_ + clique.size())),
      group_of_(static_cast<std::size_t>(clique.size())) {
  const auto& groups = clique.groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const int rank : groups[group].ranks)
      group_of_[static_cast<std::size_t>(rank)] = static_cast<int>(group);
  queues_.resize(group_of_.size() * group_of_.size());
  rings_.resize(queues_.size());
  const auto& own = groups[static_cast<std::size_t>(clique.self())].ranks;
  for (const int source : own)
    for (const int target : own) queues_[pair(source, target)] = std::make_unique<LocalQueue>();
}

bool Mailbox::same_process(int a, int b) const {
  return group_of_[static_cast<std::size_t>(a)] == group_of_[static_cast<std::size_t>(b)];
}

int Mailbox::process_of(int rank) const {
  return clique_.groups()[static_cast<std::size_t>(group_of_[static_cast<std::size_t>(rank)])]
      .process;
}

std::size_t Mailbox::pair(int source, int target) const {
  return static_cast<std::size_t>(source) * group_of_.size() + static_cast<std::size_t>(target);
}

LocalQueue& Mailbox::local_queue(int self, const Request& request) {
  return *(request.kind == Request::kSend ? queues_[pair(self, request.peer)]
                                          : queues_[pair(request.peer, self)]);
}

PairRing* Mailbox::pair_ring(int self, const Request& request) {
  const bool sends = request.kind == Request::kSend;
  const std::size_t index = sends ? pair(self, request.peer) : pair(request.peer, self);
  auto& ring = rings_[index];
  if (ring != nullptr) return ring.get();
  const int process = process_of(request.peer);
  Transport& transport = clique_.job().transport(process);
  std::byte* memory = transport.allocate_copy(PairRing::footprint());
  if (memory == nullptr) memory = shared_memory(index, sends);
  if (memory == nullptr) return nullptr;
  const ChannelId id{clique_.id(), kFirstChannel + static_cast<std::uint32_t>(index), process};
  ring = std::make_unique<PairRing>(request.kind, memory, transport, id, wake_up(self),
                                    wake_up(request.peer));
  return ring.get();
}

std::byte* Mailbox::shared_memory(std::size_t pair, bool make) {
  Arena& arena = clique_.job().arena();
  std::uint64_t found = offsets_[pair].load(std::memory_order_acquire);
  if (found == 0 && make) {
    found = arena.allocate(PairRing::footprint());
    offsets_[pair].store(found, std::memory_order_release);
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
