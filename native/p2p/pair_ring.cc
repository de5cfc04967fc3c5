#include "p2p/pair_ring.h"

#include <algorithm>
#include <cstring>

#include "collectives/copy.h"
#include "p2p/mailbox.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kSlots = 4;
constexpr std::size_t kSlotBytes = 64 << 10;

struct Slot {
  std::uint64_t message_bytes;  // of the whole message; the receiver compares it
  std::uint64_t address;        // of the whole message in the sender's memory; 0: it is in `data`
  std::int64_t execution;       // of the sender's Origin
  std::int64_t channel;
  std::byte padding[32];
  std::byte data[kSlotBytes];
};
static_assert(offsetof(Slot, data) == kSlotHeader);

}  // namespace

struct PairRing::Memory {
  Counter written;
  Counter read;
  // Whether the receiver can read the sender's memory. The receiver writes it once, before its
  // first message; a copy of the ring at the sender stays kUnknown.
  enum : std::uint32_t { kUnknown, kYes, kNo };
  alignas(64) std::atomic<std::uint32_t> readable;
  Slot slots[kSlots];
};

std::size_t PairRing::footprint() { return sizeof(Memory); }

PairRing::PairRing(Request::Kind end, std::byte* memory, Transport& transport, const ChannelId& id,
                   Counter& wake_up, Counter& peer_wake_up)
    : memory_(*reinterpret_cast<Memory*>(memory)), transport_(transport), process_(id.process) {
  if (end == Request::kSend)
    to_reader_ = transport.open(id, SendRing{&memory_.read, &wake_up, &peer_wake_up});
  else
    from_writer_ = transport.open(
        id, ReceiveRing{reinterpret_cast<std::byte*>(memory_.slots), kSlots, sizeof(Slot),
                        &memory_.written, &memory_.read, &wake_up, &peer_wake_up});
}

void PairRing::send(Request& request, std::size_t by_address_from) {
  if (request.started) {
    if (memory_.read.reached(request.offered + 1))
      request.complete.store(true, std::memory_order_relaxed);
    return;
  }
  const bool by_address = request.moved == 0 && request.bytes != 0 &&
                          request.bytes >= by_address_from &&
                          memory_.readable.load(std::memory_order_acquire) == Memory::kYes;
  while (!request.complete.load(std::memory_order_relaxed) && !request.started) {
    const std::uint32_t next = memory_.written.load();
    if (!memory_.read.reached(next + 1 - kSlots)) return;
    Slot& slot = memory_.slots[next % kSlots];
    slot.message_bytes = request.bytes;
    slot.execution = request.origin.execution;
    slot.channel = request.origin.channel;
    slot.address = by_address ? reinterpret_cast<std::uint64_t>(request.from) : 0;
    std::size_t n = 0;
    if (by_address) {
      request.started = true;
      request.offered = next;
    } else {
      n = std::min(kSlotBytes, request.bytes - request.moved);
      std::memcpy(slot.data, request.from + request.moved, n);
      request.moved += n;
      if (request.moved == request.bytes) request.complete.store(true, std::memory_order_relaxed);
    }
    memory_.written.advance();
    const auto* header = reinterpret_cast<const std::byte*>(&slot);
    to_reader_->post_send(
        next, {std::span<const std::byte, kSlotHeader>(header, kSlotHeader), 0, {slot.data, n}},
        nullptr);
  }
}

void PairRing::receive(int self, Request& request, Mailbox& mailbox) {
  if (memory_.readable.load(std::memory_order_relaxed) == Memory::kUnknown)
    memory_.readable.store(transport_.can_read(process_) ? Memory::kYes : Memory::kNo,
                           std::memory_order_release);
  const bool can_read = memory_.readable.load(std::memory_order_relaxed) == Memory::kYes;
  while (!request.complete.load(std::memory_order_relaxed)) {
    const std::uint32_t next = memory_.read.load();
    if (!memory_.written.reached(next + 1)) return;
    const Slot& slot = memory_.slots[next % kSlots];
    if (request.moved == 0)
      mailbox.check(self, request, slot.message_bytes, {slot.execution, slot.channel, 0});
    if (slot.address != 0 && can_read) {
      const MemoryPiece whole{slot.address, request.to, request.bytes};
      transport_.read(process_, {&whole, 1});
      request.moved = request.bytes;
    } else {
      const std::size_t n = std::min(kSlotBytes, request.bytes - request.moved);
      OutputCopy(request.bytes)(request.to + request.moved, slot.data, n);
      request.moved += n;
    }
    if (request.moved == request.bytes) request.complete.store(true, std::memory_order_relaxed);
    memory_.read.advance();
    from_writer_->post_release(next, nullptr);
  }
}

}  // namespace lockstep
