// Reading the memory of another process of this host, by process_vm_readv: one copy, straight from
// its buffer into ours, where a message through shared memory takes two.
//
// Not every system permits it (containers with a seccomp filter, Yama, other user ids), so it
// must not be used before `readable` has tried. Nothing keeps the other process from ending or
// giving up while it is read; the kernel makes that an error or stale bytes, never a fault here,
// and `read` throws in both cases. What a reader must be able to rely on is that a process aborts
// the job before it leaves a collective whose buffers may still be read.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace lockstep {

class CrossMemoryReader {
 public:
  // Publishes to the others where this process is. When not `enabled` nothing is published and
  // nothing is readable. `labels` name the processes in errors and must outlive this.
  CrossMemoryReader(Arena& arena, int process, const std::vector<std::string>& labels,
                    bool enabled);
  CrossMemoryReader(const CrossMemoryReader&) = delete;
  CrossMemoryReader& operator=(const CrossMemoryReader&) = delete;

  // Whether the memory of this process can be read: tries it. False for one that has not started.
  bool readable(int process) const;

  // Throws Error when the process has ended or forbids it, and when the job has failed by the end
  // of the copy: the bytes may then be anything.
  void read(int process, std::span<const MemoryPiece> pieces) const;

 private:
  bool is_self(const ArenaHeader::Process& peer) const;
  [[noreturn]] void fail(int process, const std::string& reason) const;

  Arena& arena_;
  const std::vector<std::string>& labels_;
  const bool enabled_;
};

}  // namespace lockstep
