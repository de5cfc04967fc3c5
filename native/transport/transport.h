// How the slots of a ring get from one process to another.
//
// Two processes exchange data through rings: one of them writes slots in order, the other reads
// them and releases each. Where both map the same memory (transport/shm), a ring exists once and
// there is nothing to send. Otherwise (transport/tcp, transport/ucx) each end has a copy of the
// ring: a transport moves every written slot into the reader's copy and every release back to the
// writer, and advances the counters there as the peer would have done. So what reads and writes
// rings does not know which transport it uses.
//
// `Job::transport` chooses the transport of a peer. A transport makes progress by itself: shared
// memory needs none, TCP has a thread. `post_send` and `post_release` are called once for each
// slot, never while spinning; ranks of different rings may call them at the same time.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/futex_wait.h"

namespace lockstep {

// Names the same ring at both of its ends.
struct ChannelId {
  std::uint64_t clique;
  std::uint32_t ring;  // which ring of the clique
  int process;         // the peer
  auto operator<=>(const ChannelId&) const = default;
};

// Every slot begins with a header, which is always sent; of the rest, only what the reader needs.
inline constexpr std::size_t kSlotHeader = 64;

// The most slots that a ring has between hosts, and so the most messages of it on their way.
inline constexpr std::uint32_t kMaxSlots = 8;

// A written slot: its header, and `rest`, which follows the header in the reader's slot. Neither
// has to be in a ring of the sender's.
struct Message {
  std::span<const std::byte, kSlotHeader> header;
  std::span<const std::byte> rest;
};

// The writer's end of a ring. The memory outlives the transport.
struct SendRing {
  Counter* read;                    // how many slots the reader has released
  Counter* wake_up = nullptr;       // of the writer: advanced after each release
  Counter* peer_wake_up = nullptr;  // of the reader, where it is in memory that both map
};

// The reader's end of a ring. The memory outlives the transport.
struct ReceiveRing {
  std::byte* slots;
  std::uint32_t count;
  std::size_t slot_bytes;           // with the header
  Counter* written;                 // how many slots the writer has written
  Counter* read;                    // how many of them have been released
  Counter* wake_up = nullptr;       // of the reader: advanced after each message
  Counter* peer_wake_up = nullptr;  // of the writer, where it is in memory that both map
};

class SendChannel {
 public:
  virtual ~SendChannel() = default;
  // Sends message `number`. Returns when its memory may be used again, or the peer has left; throws
  // Error when it cannot be sent. `limits` are those of the wait for room; null: the job's timeout,
  // from now on.
  virtual void post_send(std::uint32_t number, const Message& message,
                         const WaitLimits* limits) = 0;
};

class ReceiveChannel {
 public:
  virtual ~ReceiveChannel() = default;
  // Slot `number` has been read and `read` advanced: the writer may use it again. As `post_send`.
  virtual void post_release(std::uint32_t number, const WaitLimits* limits) = 0;

  // Names the place for the payload of message `number`, one of the next `count`, in place of its
  // slot, which saves a copy. Best effort: it goes into the slot if it is already on its way, has
  // another length, or the transport places none. The memory must stay until `take_placed`, or
  // `withdraw`.
  virtual void post_receive(std::uint32_t, std::span<std::byte>) {}
  // Once message `number` has arrived: whether its payload is where `post_receive` said.
  virtual bool take_placed(std::uint32_t) { return false; }
  // Nothing goes to the memory of a `post_receive` any more once this has returned. For a
  // collective that has failed.
  virtual void withdraw() {}
};

// A contiguous part of another process's memory, and where a copy of it goes.
struct MemoryPiece {
  std::uint64_t from;  // an address in the other process
  std::byte* to;
  std::size_t bytes;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Zeroed memory for this process's copy of a ring, aligned to a cache line. Null where both ends
  // of a ring are one memory, which the caller then provides.
  virtual std::byte* allocate_copy(std::size_t bytes) = 0;

  // Before the first message is sent or expected. Null: there is nothing to do after a slot has
  // been written or released.
  virtual std::unique_ptr<SendChannel> open(const ChannelId& id, const SendRing& ring) = 0;
  virtual std::unique_ptr<ReceiveChannel> open(const ChannelId& id, const ReceiveRing& ring) = 0;

  // Whether `read` can copy from the memory of this process.
  virtual bool can_read(int) const { return false; }
  // Throws Error when the process has ended or forbids it, and when the job has failed by the end
  // of the copy: the bytes may then be anything.
  virtual void read(int, std::span<const MemoryPiece>) const {}

  // `wait_until`, for a counter that something of this transport advances. `bytes`: of the
  // collective, which says whether it pays that the caller receives messages itself meanwhile;
  // kAlsoOthers where something else advances the counter too.
  static constexpr std::size_t kAlsoOthers = ~std::size_t{0};
  virtual WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                          [[maybe_unused]] std::size_t bytes) {
    return wait_until(counter, target, limits);
  }

  // A sentence for the error of a wait that has lasted too long: which messages from and to that
  // process are on their way. "" where the transport does not know.
  virtual std::string in_flight(int) { return {}; }

  // Becomes non-zero once the program of that process has ended; null where that is not recorded.
  virtual const std::atomic<std::uint32_t>* has_left(int process) const = 0;
};

}  // namespace lockstep
