#include "p2p/pair_ring.h"

#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "p2p/mailbox.h"

namespace lockstep {

// Stands at the start of each slot; a part of the message follows.
struct PairRing::Header {
  std::uint64_t message_bytes;  // of the whole message; the receiver compares it
  std::uint64_t address;        // of the whole message in the sender's memory; 0: the part follows
  std::int64_t execution;       // of the sender's Origin
  std::int64_t channel;
  std::byte padding[kSlotHeader - 32];
};

// The slots follow.
struct PairRing::Memory {
  Counter written;
  Counter read;
  // Whether the receiver can read the sender's memory. The receiver writes it once, before its
  // first message; where the memory is not shared it stays kUnknown at the sender.
  enum : std::uint32_t { kUnknown, kYes, kNo };
  alignas(64) std::atomic<std::uint32_t> readable;
};

std::size_t PairRing::footprint(std::uint32_t slots, std::size_t slot_bytes) {
  return sizeof(Memory) + slots * (kSlotHeader + slot_bytes);
}

PairRing::PairRing(Request::Kind end, const Ring& ring, Transport& transport, const ChannelId& id,
                   Counter& wake_up, Counter* peer_wake_up)
    : memory_(*reinterpret_cast<Memory*>(ring.memory)),
      slot_bytes_(ring.slot_bytes),
      shared_(ring.shared),
      slots_(shared_ ? kSharedSlots : kRemoteSlots),
      transport_(transport),
      process_(id.process) {
  static_assert(sizeof(Header) == kSlotHeader && sizeof(Memory) % 64 == 0);
  if (end == Request::kSend)
    to_reader_ = transport.open(id, SendRing{&memory_.read, &wake_up, peer_wake_up});
  else
    from_writer_ =
        transport.open(id, ReceiveRing{slot(0), slots_, kSlotHeader + slot_bytes_, &memory_.written,
                                       &memory_.read, &wake_up, peer_wake_up});
}

// Short messages are cut finer, so that their parts are on the way while others are copied.
std::size_t PairRing::part_bytes(const Request& request) const {
  if (shared_) return slot_bytes_;
  return std::min(slot_bytes_, std::max(kLeastPart, (request.bytes / 4 + 4095) / 4096 * 4096));
}

std::byte* PairRing::slot(std::uint32_t number) const {
  return reinterpret_cast<std::byte*>(&memory_ + 1) + number % slots_ * (kSlotHeader + slot_bytes_);
}

bool PairRing::may_send_address(const Request& request, std::size_t by_address_from) const {
  return request.moved == 0 && request.bytes != 0 && request.bytes >= by_address_from &&
         memory_.readable.load(std::memory_order_acquire) == Memory::kYes;
}

void PairRing::send(Request& request, std::size_t by_address_from) {
  if (request.started) {
    if (memory_.read.reached(request.offered + 1))
      request.complete.store(true, std::memory_order_relaxed);
    return;
  }
  const bool by_address = may_send_address(request, by_address_from);
  for (int parts = 0; shared_ || parts < kPartsAtOnce; ++parts) {
    if (request.complete.load(std::memory_order_relaxed) || request.started) return;
    const std::uint32_t next = memory_.written.load();
    if (!memory_.read.reached(next + 1 - slots_)) return;
    send_part(request, next, by_address);
  }
}

// Sends what one slot holds.
void PairRing::send_part(Request& request, std::uint32_t number, bool by_address) {
  Header own{};
  Header& header = shared_ ? *reinterpret_cast<Header*>(slot(number)) : own;
  header.message_bytes = request.bytes;
  header.execution = request.origin.execution;
  header.channel = request.origin.channel;
  header.address = by_address ? reinterpret_cast<std::uint64_t>(request.from) : 0;
  std::span<const std::byte> part;
  if (by_address) {
    request.started = true;
    request.offered = number;
  } else {
    part = {request.from + request.moved,
            std::min(part_bytes(request), request.bytes - request.moved)};
    if (shared_) std::memcpy(slot(number) + kSlotHeader, part.data(), part.size());
    request.moved += part.size();
  }
  memory_.written.advance();
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  to_reader_->post_send(number, {std::span<const std::byte, kSlotHeader>(bytes, kSlotHeader), part},
                        nullptr);
  // The sender's buffer may be used again from here on.
  if (!by_address && request.moved == request.bytes)
    request.complete.store(true, std::memory_order_relaxed);
}

std::span<std::byte> PairRing::next_part(const Request& request, std::size_t at) const {
  return {request.to + at, std::min(part_bytes(request), request.bytes - at)};
}

// Announces where the next parts go. A message of one part is small: its copy costs little.
void PairRing::post_parts(Request& request) {
  const std::size_t part = part_bytes(request);
  if (shared_ || request.bytes <= part) return;
  for (; request.posted < std::min(request.bytes, request.moved + slots_ * part);
       request.posted += part) {
    const auto ahead = static_cast<std::uint32_t>((request.posted - request.moved) / part);
    from_writer_->post_receive(memory_.read.load() + ahead, next_part(request, request.posted));
  }
}

void PairRing::withdraw() { from_writer_->withdraw(); }

void PairRing::receive(int self, Request& request, Mailbox& mailbox) {
  if (memory_.readable.load(std::memory_order_relaxed) == Memory::kUnknown)
    memory_.readable.store(transport_.can_read(process_) ? Memory::kYes : Memory::kNo,
                           std::memory_order_release);
  const bool can_read = memory_.readable.load(std::memory_order_relaxed) == Memory::kYes;
  while (!request.complete.load(std::memory_order_relaxed)) {
    const std::uint32_t next = memory_.read.load();
    post_parts(request);
    if (!memory_.written.reached(next + 1)) return;
    const std::byte* message = slot(next);
    const auto& header = *reinterpret_cast<const Header*>(message);
    if (request.moved == 0)
      mailbox.check(self, request, header.message_bytes, {header.execution, header.channel, 0});
    if (header.address != 0 && can_read) {
      const MemoryPiece whole{header.address, request.to, request.bytes};
      transport_.read(process_, {&whole, 1});
      request.moved = request.bytes;
    } else {
      const auto part = next_part(request, request.moved);
      if (request.posted == 0 || !from_writer_->take_placed(next))
        OutputCopy(request.bytes)(part.data(), message + kSlotHeader, part.size());
      request.moved += part.size();
    }
    if (request.moved == request.bytes) request.complete.store(true, std::memory_order_relaxed);
    memory_.read.advance();
    from_writer_->post_release(next, nullptr);
  }
}

}  // namespace lockstep
