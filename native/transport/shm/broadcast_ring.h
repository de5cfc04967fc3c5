// A lane carries messages from one process to all others of its clique: a ring of slots in shared
// memory that one process writes and the others read in place. Between hosts `publish` also sends
// the message, and the network's reader writes it into a ring of the same form that belongs to the
// receiver alone; `release` then tells the writer.
//
// Invariants: only the writer touches `written` and the slots between `acquire` and `publish`; each
// reader only its own `read`. A slot is written again once every reader has released it, so data
// is never overtaken. The signature in front of a slot lets a reader find out, before it uses a
// byte, that the writer is in another collective.
//
// A lane object belongs to one process and is used by one thread at a time (the clique's leader).
#pragma once

#include <cstddef>
#include <vector>

#include "core/types.h"
#include "transport/shm/futex_wait.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/endpoint.h"

namespace lockstep {

class Lane {
 public:
  static constexpr std::uint32_t kDepth = 4;
  static constexpr std::size_t kHeader = kSlotHeader;  // payloads have their own cache lines

  // The bytes of shared memory that a lane of this capacity with this many processes takes.
  static std::size_t footprint(int processes, std::size_t capacity);

  // Makes memory good for a lane that was not zero; payloads may be anything.
  static void clear(std::byte* memory, int processes, std::size_t capacity);

  // `memory` starts as zeros; what is written on another host has memory of its own in each reader.
  // `writer` and `self` index the clique's processes.
  Lane(std::byte* memory, int processes, std::size_t capacity, int writer, int self);
  // Joins this end with those on other hosts, if there are any. `clique` and `place` name the lane
  // in all of them, and `process_of` says which processes the clique's are.
  void connect(Network& network, std::uint64_t clique, std::uint32_t place,
               const std::vector<int>& process_of);

  // The writer's side. The payload has `capacity` bytes; the wait is for the slowest reader.
  Counter* blocked_by();  // the reader that still holds the next slot, or null
  std::uint32_t free_target() const { return next_ + 1 - kDepth; }
  Counter* unread_by();  // a reader that has not released every message, or null
  std::uint32_t read_target() const { return next_; }
  std::byte* payload() const { return slot(next_) + kHeader; }
  // Readers of this host find all of the payload, others what `part_for` says of their index.
  struct Part {
    std::size_t at, bytes;
  };
  template <typename PartFor>
  void publish(const Signature& signature, const PartFor& part_for, const Watch& watch) {
    const std::uint32_t number = publish_here(signature);
    for (const auto& [reader, stream] : elsewhere_) send(number, stream, part_for(reader), watch);
  }

  // A reader's side.
  Counter& written() const { return *written_; }
  std::uint32_t next() const { return next_; }
  const Signature& signature() const { return *reinterpret_cast<const Signature*>(slot(next_)); }
  void release(const Watch& watch);

  int writer() const { return writer_; }
  // Which of the readers this is, of those that `blocked_by` and `unread_by` name.
  int index_of(const Counter* reader) const { return static_cast<int>(reader - read_); }

 private:
  struct Elsewhere {
    int index;  // of the process in the clique
    Stream stream;
  };
  std::uint32_t publish_here(const Signature& signature);
  void send(std::uint32_t number, const Stream& stream, const Part& part, const Watch& watch);
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
  std::uint32_t next_ = 0;  // the slot to write (writer) or to read (reader) next
  Network* network_ = nullptr;
  std::vector<Elsewhere> elsewhere_;  // readers on other hosts, for the writer; else the writer
};

}  // namespace lockstep
