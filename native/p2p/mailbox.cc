#include "p2p/mailbox.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "collectives/copy.h"
#include "core/clique.h"
#include "core/error.h"
#include "core/job.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kSlots = 4;
constexpr std::size_t kSlotBytes = 64 << 10;

// The ring of one pair of ranks of different processes.
struct Ring {
  struct Slot {
    std::uint64_t message_bytes;  // of the whole message; the receiver compares it
    std::uint64_t address;        // of the whole message in the sender's memory; 0: it is in `data`
    std::int64_t execution;       // of the sender's Origin
    std::int64_t channel;
    std::byte padding[32];
    std::byte data[kSlotBytes];
  };
  Counter written;
  Counter read;
  // Whether the receiver can read the sender's memory: it says so once, before its first message.
  enum : std::uint32_t { kUnknown, kYes, kNo };
  alignas(64) std::atomic<std::uint32_t> readable;
  Slot slots[kSlots];
};
static_assert(offsetof(Ring::Slot, data) == kSlotHeader);

// Streams between hosts; the lanes' have smaller numbers.
constexpr std::uint32_t kFirstPlace = 1u << 31;

}  // namespace

std::size_t Mailbox::footprint(std::size_t ranks) {
  return ranks * sizeof(Counter) + ranks * ranks * sizeof(std::uint64_t);
}

Mailbox::Mailbox(Clique& clique, std::byte* memory)
    : clique_(clique),
      bells_(reinterpret_cast<Counter*>(memory)),
      offsets_(reinterpret_cast<std::atomic<std::uint64_t>*>(bells_ + clique.size())),
      group_of_(static_cast<std::size_t>(clique.size())) {
  const auto& groups = clique.groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const int rank : groups[group].ranks)
      group_of_[static_cast<std::size_t>(rank)] = static_cast<int>(group);
  local_.resize(group_of_.size() * group_of_.size());
  elsewhere_.resize(local_.size());
  const auto& own = groups[static_cast<std::size_t>(clique.self())].ranks;
  for (const int source : own)
    for (const int target : own) local_[pair(source, target)] = std::make_unique<LocalChannel>();
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

void Mailbox::progress(int self, Request& request) {
  if (request.complete.load(std::memory_order_acquire)) return;
  const bool local = same_process(self, request.peer);
  if (request.kind == Request::kSend)
    local ? send_local(self, request) : send_shared(self, request);
  else
    local ? receive_local(self, request) : receive_shared(self, request);
}

void Mailbox::send_local(int self, Request& request) {
  if (request.started) return;  // the receiver completes it
  request.started = true;
  LocalChannel& channel = *local_[pair(self, request.peer)];
  {
    std::lock_guard lock(channel.mutex);
    channel.sent.push_back(&request);
  }
  bell(request.peer).advance();
}

void Mailbox::receive_local(int self, Request& request) {
  LocalChannel& channel = *local_[pair(request.peer, self)];
  {
    // Copying under the lock keeps the sender from giving up in the middle of it.
    std::lock_guard lock(channel.mutex);
    if (channel.sent.empty()) return;
    Request& sent = *channel.sent.front();
    check(self, request, sent.bytes, sent.origin);
    channel.sent.pop_front();
    OutputCopy(request.bytes)(request.to, sent.from, request.bytes);
    sent.complete.store(true, std::memory_order_release);
  }
  request.complete.store(true, std::memory_order_relaxed);
  bell(request.peer).advance();
}

std::byte* Mailbox::region(int source, int target, bool make) {
  const bool sends = group_of_[static_cast<std::size_t>(source)] == clique_.self();
  if (clique_.world().is_elsewhere(process_of(sends ? target : source)))
    return region_elsewhere(source, target);
  auto& offset = offsets_[pair(source, target)];
  std::uint64_t found = offset.load(std::memory_order_acquire);
  if (found == 0 && make) {
    found = clique_.world().arena().allocate(sizeof(Ring));
    offset.store(found, std::memory_order_release);
  }
  return found == 0 ? nullptr : clique_.world().arena().at(found);
}

std::byte* Mailbox::region_elsewhere(int source, int target) {
  auto& memory = elsewhere_[pair(source, target)];
  if (memory == nullptr) {
    const auto ring = std::make_shared<Ring>();
    Streams& streams = clique_.world().network()->streams();
    if (group_of_[static_cast<std::size_t>(source)] == clique_.self())
      streams.open(stream(source, target, target), Outlet{&ring->read, &bell(source)});
    else
      streams.open(stream(source, target, source),
                   Inlet{reinterpret_cast<std::byte*>(ring->slots), kSlots, sizeof(Ring::Slot),
                         &ring->written, &ring->read, &bell(target)});
    memory = ring;
  }
  return static_cast<std::byte*>(memory.get());
}

Stream Mailbox::stream(int source, int target, int peer) const {
  return {clique_.id(), kFirstPlace + static_cast<std::uint32_t>(pair(source, target)),
          process_of(peer)};
}

Watch Mailbox::sending() const {
  World& world = clique_.world();
  return {
      &world.arena().header().abort_state, Deadline(world.timeout_seconds()), {}, &world.alarm()};
}

void Mailbox::send_shared(int self, Request& request) {
  auto& ring = *reinterpret_cast<Ring*>(region(self, request.peer, true));
  if (request.started) {
    if (ring.read.reached(request.offered + 1))
      request.complete.store(true, std::memory_order_relaxed);
    return;
  }
  const bool by_address = request.moved == 0 && request.bytes != 0 &&
                          request.bytes >= clique_.world().single_message_from() &&
                          ring.readable.load(std::memory_order_acquire) == Ring::kYes;
  while (!request.complete.load(std::memory_order_relaxed)) {
    const std::uint32_t next = ring.written.load();
    if (!ring.read.reached(next + 1 - kSlots)) return;
    Ring::Slot& slot = ring.slots[next % kSlots];
    slot.message_bytes = request.bytes;
    slot.execution = request.origin.execution;
    slot.channel = request.origin.channel;
    slot.address = by_address ? reinterpret_cast<std::uint64_t>(request.from) : 0;
    if (by_address) {
      request.started = true;
      request.offered = next;
      ring.written.advance();
      bell(request.peer).advance();
      return;
    }
    const std::size_t n = std::min(kSlotBytes, request.bytes - request.moved);
    std::memcpy(slot.data, request.from + request.moved, n);
    request.moved += n;
    if (request.moved == request.bytes) request.complete.store(true, std::memory_order_relaxed);
    ring.written.advance();
    if (!clique_.world().is_elsewhere(process_of(request.peer))) {
      bell(request.peer).advance();
      continue;
    }
    const auto* header = reinterpret_cast<const std::byte*>(&slot);
    clique_.world().network()->send(
        stream(self, request.peer, request.peer), next,
        {std::span<const std::byte, kSlotHeader>(header, kSlotHeader), 0, {slot.data, n}},
        sending());
  }
}

void Mailbox::receive_shared(int self, Request& request) {
  std::byte* memory = region(request.peer, self, false);
  if (memory == nullptr) return;
  auto& ring = *reinterpret_cast<Ring*>(memory);
  const PeerMemory& peers = clique_.world().peers();
  const int process = process_of(request.peer);
  if (ring.readable.load(std::memory_order_relaxed) == Ring::kUnknown)
    ring.readable.store(peers.readable(process) ? Ring::kYes : Ring::kNo,
                        std::memory_order_release);
  while (!request.complete.load(std::memory_order_relaxed)) {
    const std::uint32_t next = ring.read.load();
    if (!ring.written.reached(next + 1)) return;
    const Ring::Slot& slot = ring.slots[next % kSlots];
    if (request.moved == 0)
      check(self, request, slot.message_bytes, {slot.execution, slot.channel, 0});
    if (slot.address != 0 && !clique_.world().is_elsewhere(process)) {
      const PeerMemory::Piece whole{slot.address, request.to, request.bytes};
      peers.read(process, {&whole, 1});
      request.moved = request.bytes;
    } else {
      const std::size_t n = std::min(kSlotBytes, request.bytes - request.moved);
      OutputCopy(request.bytes)(request.to + request.moved, slot.data, n);
      request.moved += n;
    }
    if (request.moved == request.bytes) request.complete.store(true, std::memory_order_relaxed);
    ring.read.advance();
    if (clique_.world().is_elsewhere(process))
      clique_.world().network()->release(stream(request.peer, self, request.peer), next, sending());
    else
      bell(request.peer).advance();
  }
}

void Mailbox::check(int self, const Request& request, std::size_t bytes, const Origin& origin) {
  World& world = clique_.world();
  const auto device = [&](int rank) {
    const int id = clique_.devices()[static_cast<std::size_t>(rank)];
    return "device " + std::to_string(id) + " of " + world.label(world.process_of(id));
  };
  if (bytes != request.bytes)
    throw Divergence("lockstep: collective-permute on " + clique_.describe() + ": " +
                     device(request.peer) + " sends " + std::to_string(bytes) + " bytes, " +
                     device(self) + " expects " + std::to_string(request.bytes) + ".");
  if (origin.agrees(request.origin)) return;
  if (!same_process(self, request.peer) &&
      world.let_through(request.origin, process_of(request.peer), origin))
    return;
  throw Divergence("lockstep: collective-permute on " + clique_.describe() + ": " +
                   device(request.peer) + " sends " + std::to_string(bytes) + " bytes to " +
                   device(self) +
                   ", which expects as many, but of another program or another execution of one: "
                   "the processes run their programs in different orders. "
                   "LOCKSTEP_CHECK_PROGRAMS=0 lets such calls meet.");
}

void Mailbox::withdraw(int self, Request& request) {
  if (request.kind != Request::kSend || !request.started) return;
  if (!same_process(self, request.peer)) {
    // The receiver reads the buffer or is about to, and believes its bytes while the job is
    // healthy.
    send_shared(self, request);
    if (!request.complete.load(std::memory_order_relaxed))
      clique_.world().arena().abort("lockstep: collective-permute on " + clique_.describe() +
                                    ": rank " + std::to_string(self) + " left before rank " +
                                    std::to_string(request.peer) + " had its message.");
    return;
  }
  LocalChannel& channel = *local_[pair(self, request.peer)];
  std::lock_guard lock(channel.mutex);
  std::erase(channel.sent, &request);
}

Request* Port::add(Request::Kind kind, int peer, const std::byte* from, std::byte* to,
                   std::size_t bytes, const Origin& origin) {
  auto request = std::make_unique<Request>();
  request->kind = kind;
  request->peer = peer;
  request->from = from;
  request->to = to;
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
      clique_.mailbox().progress(rank_, *added);
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
  World& world = clique_.world();
  Counter& bell = clique_.mailbox().bell(rank_);
  Watch watch{&world.arena().header().abort_state, Deadline(world.timeout_seconds()),
              world.process_spin(), &world.alarm()};
  guarded([&] {
    // A failure ended all requests of this rank, this one too.
    if (std::ranges::find(pending_, request, &std::unique_ptr<Request>::get) == pending_.end())
      throw Error(world.arena().abort_text());
    const int peer = clique_.mailbox().process_of(request->peer);
    watch.left = world.has_left(peer);
    for (;;) {
      const std::uint32_t seen = bell.load();
      for (std::size_t i = 0; i < pending_.size(); ++i)
        if (!behind_another(i)) clique_.mailbox().progress(rank_, *pending_[i]);
      if (request->complete.load(std::memory_order_acquire)) return;
      const WaitResult result = wait_until(bell, seen + 1, watch);
      if (result == WaitResult::kAborted) throw Error(world.arena().abort_text());
      if (result == WaitResult::kDeadline) give_up(*request);
      if (result == WaitResult::kLeft)
        throw Error(world.has_ended(peer, "collective-permute on " + clique_.describe()));
    }
  });
  std::erase_if(pending_, [&](const auto& pending) { return pending.get() == request; });
}

template <typename Step>
void Port::guarded(Step step) {
  try {
    step();
  } catch (const Divergence& error) {
    const std::string text = clique_.world().diverged(error.what());
    forget_all();
    throw Error(text);
  } catch (const Error& error) {
    clique_.world().arena().abort(error.what());
    forget_all();
    throw;
  }
}

void Port::forget_all() {
  for (auto& pending : pending_) clique_.mailbox().withdraw(rank_, *pending);
  pending_.clear();
}

bool Port::behind_another(std::size_t index) const {
  const Request& request = *pending_[index];
  for (std::size_t i = 0; i < index; ++i) {
    const Request& elder = *pending_[i];
    // A started send stands in the queue of its pair, which keeps the order.
    if (elder.kind == request.kind && elder.peer == request.peer && !elder.started &&
        !elder.complete.load(std::memory_order_acquire))
      return true;
  }
  return false;
}

void Port::give_up(const Request& request) {
  World& world = clique_.world();
  const int device = clique_.devices()[static_cast<std::size_t>(request.peer)];
  const std::string who =
      "device " + std::to_string(device) + " of " + world.label(world.process_of(device));
  throw Error(world.timed_out(
      "lockstep: collective-permute of " + std::to_string(request.bytes) + " bytes on " +
      clique_.describe() + ": device " +
      std::to_string(clique_.devices()[static_cast<std::size_t>(rank_)]) + " of " +
      world.label(world.process()) + " waited " + world.timeout_text() + " for " + who + " to " +
      (request.kind == Request::kSend ? "receive" : "send") + ". Not arrived: " + who +
      ". --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) sets the limit; 0 means none."));
}

}  // namespace lockstep
