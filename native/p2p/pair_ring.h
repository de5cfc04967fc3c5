// One end of the ring from a rank of one process to a rank of another process. Messages stream
// through its slots. A large message goes as its address in one slot, for a receiver that has found
// out that it can read the sender's memory; the sender's request is then complete when the receiver
// has released the slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/futex_wait.h"
#include "p2p/request.h"
#include "transport/transport.h"

namespace lockstep {

class Mailbox;

class PairRing {
 public:
  // The bytes of a slot in memory that both processes map. Elsewhere: Clique::link_capacity.
  static constexpr std::size_t kSharedSlot = 64 << 10;
  // The least that a message between hosts is cut into.
  static constexpr std::size_t kLeastPart = 256 << 10;
  // What `send` moves at most between hosts.
  static constexpr int kPartsAtOnce = 2;
  // The slots of a ring. Between hosts a sender needs more of them not to wait for a receiver that
  // has not run for a while. All may arrive before the receiver has opened the ring: see
  // Channels::kMaxEarlyBytes.
  static constexpr std::uint32_t kSharedSlots = 4, kRemoteSlots = kMaxSlots;
  static std::size_t footprint(std::uint32_t slots, std::size_t slot_bytes);

  // Memory that starts as zeros. Where it is not shared, each end has its own, and the sender's
  // slots are not used: messages go from the buffer of the request.
  struct Ring {
    std::byte* memory;
    std::size_t slot_bytes;
    bool shared;
  };
  // `wake_up` is that of this end's rank, `peer_wake_up` that of the other end's, where the memory
  // is shared.
  PairRing(Request::Kind end, const Ring& ring, Transport& transport, const ChannelId& id,
           Counter& wake_up, Counter* peer_wake_up);

  // Both move what can be moved without waiting; between hosts `send` moves a few parts at most, so
  // that its rank takes what has arrived before it goes on. A message of at least `by_address_from`
  // bytes goes by its address where that is possible. `receive` throws Divergence unless the
  // message is the one expected.
  void send(Request& request, std::size_t by_address_from);
  void receive(int self, Request& request, Mailbox& mailbox);
  // Nothing goes to the memory of a receive any more.
  void withdraw();

 private:
  struct Memory;
  struct Header;

  std::size_t part_bytes(const Request& request) const;
  std::byte* slot(std::uint32_t number) const;
  bool may_send_address(const Request& request, std::size_t by_address_from) const;
  std::span<std::byte> next_part(const Request& request, std::size_t at) const;
  void post_parts(Request& request);
  void send_part(Request& request, std::uint32_t number, bool by_address);

  Memory& memory_;
  const std::size_t slot_bytes_;
  const bool shared_;
  const std::uint32_t slots_;
  Transport& transport_;
  const int process_;  // the peer's
  std::unique_ptr<SendChannel> to_reader_;
  std::unique_ptr<ReceiveChannel> from_writer_;
};

}  // namespace lockstep
