// A broadcast ring carries messages from one process to all others of its clique that share its
// host: a ring of slots in shared memory that one process writes and the others read in place.
//
// Invariants: only the writer touches `written` and the slots between `acquire` and `publish`; each
// reader advances only its own `read`. A slot is written again once every reader has released it,
// so data is never overtaken. The signature at the start of a slot lets a reader find out, before
// it uses a byte, that the writer is in another collective.
//
// A BroadcastRing object belongs to one process and is used by one thread at a time (the clique's
// leader).
#pragma once

#include <cstddef>

#include "base/futex_wait.h"
#include "base/types.h"
#include "transport/transport.h"

namespace lockstep {

class BroadcastRing {
 public:
  static constexpr std::uint32_t kDepth = 4;
  static constexpr std::size_t kHeader = kSlotHeader;  // payloads have their own cache lines

  // The bytes of memory that a ring of this capacity with this many processes takes.
  static std::size_t footprint(int processes, std::size_t capacity);

  // `memory` starts as zeros, and is the same for all. `writer` and `self` index the clique's
  // processes of this host.
  BroadcastRing(std::byte* memory, int processes, std::size_t capacity, int writer, int self);

  // The writer's side. The payload has `capacity` bytes; the wait is for the slowest reader.
  Counter* blocked_by();  // the reader that still holds the next slot, or null
  std::uint32_t free_target() const { return next_ + 1 - kDepth; }
  Counter* unread_by();  // a reader that has not released every message, or null
  std::uint32_t read_target() const { return next_; }
  std::byte* payload() const { return slot(next_) + kHeader; }
  void publish(const Signature& signature);

  // A reader's side.
  Counter& written() const { return *written_; }
  std::uint32_t next() const { return next_; }
  const Signature& signature() const { return *reinterpret_cast<const Signature*>(slot(next_)); }
  void release();

  int writer() const { return writer_; }
  // The index of a reader that `blocked_by` or `unread_by` has returned.
  int index_of(const Counter* reader) const { return static_cast<int>(reader - read_); }

 private:
  Counter* behind(std::uint32_t target);
  std::byte* slot(std::uint32_t index) const {
    return slots_ + (index % kDepth) * (kHeader + capacity_);
  }

  Counter* written_;
  Counter* read_;  // one per process; the writer's own is unused
  std::byte* slots_;
  std::size_t capacity_;
  int processes_;
  int writer_;
  int self_;
  std::uint32_t next_ = kFirstNumber;  // the slot to write (writer) or to read (reader) next
};

}  // namespace lockstep
