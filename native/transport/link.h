// A link carries messages between this process and one of another host, in both directions, for one
// clique. Messages arrive in the order in which they are sent. A sender needs no memory of its own:
// a message may be anywhere, and its memory is free again when `send` returns. The receiver has a
// ring of slots, and reads each message in its slot.
//
// Invariant: at most `kDepth` messages of a direction have not been released. The signature at the
// start of a message lets the receiver find out, before it uses a byte, that the sender is in
// another collective.
//
// A Link object is used by one thread at a time (the clique's leader).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "base/futex_wait.h"
#include "base/types.h"
#include "transport/transport.h"

namespace lockstep {

class Link {
 public:
  static constexpr std::uint32_t kDepth = 4;
  static_assert(kDepth <= kMaxSlots);

  // The longest message has `capacity` bytes; both ends have the same.
  Link(Transport& transport, const ChannelId& id, std::size_t capacity);

  // The sender's side. There is room for a message once `released` has reached `free_target`.
  Counter& released() { return released_; }
  std::uint32_t free_target() const { return sent_ + 1 - kDepth; }
  void send(const Signature& signature, std::span<const std::byte> payload,
            const WaitLimits& limits);

  std::uint32_t sent() const { return sent_; }

  // The receiver's side. A message is there once `written` has reached `next` + 1.
  Counter& written() { return written_; }
  std::uint32_t next() const { return next_; }
  const Signature& signature() const { return *reinterpret_cast<const Signature*>(slot()); }
  // The next message's payload, in the place that `post_receive` named or in its slot. Called once
  // for each message.
  const std::byte* payload();
  void release(const WaitLimits& limits);
  // Names the place for the payload of the next message that has none yet; `to` has its length, or
  // is empty: then it goes into its slot. See ReceiveChannel. False when all messages that can be
  // on their way have a place.
  bool post_receive(std::span<std::byte> to);
  // Nothing goes to such memory any more once this has returned.
  void withdraw();
  // Whether a message of the collective with this number has been received here.
  bool has_received(std::uint32_t sequence) const { return last_received_ == sequence + 1; }
  void note_received(std::uint32_t sequence) { last_received_ = sequence + 1; }

 private:
  std::byte* slot() const { return slots_ + next_ % kDepth * (kSlotHeader + capacity_); }

  const std::size_t capacity_;
  std::byte* const slots_;
  std::uint32_t sent_ = kFirstNumber;
  std::uint32_t next_ = kFirstNumber;
  std::uint32_t last_received_ = kFirstNumber;  // the last collective's number, and 1
  std::uint32_t posted_ =
      kFirstNumber;  // the first message for which nothing is posted; at least next_
  std::array<std::byte*, kDepth> wanted_{};
  Counter released_;  // messages that the peer has released
  Counter written_;   // messages that have arrived
  Counter read_;      // and those of them that have been released
  // Declared after the counters that they advance, so they are destroyed before them.
  std::unique_ptr<SendChannel> to_peer_;
  std::unique_ptr<ReceiveChannel> from_peer_;
};

}  // namespace lockstep
