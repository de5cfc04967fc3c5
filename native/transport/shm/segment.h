// The memory that the processes of one host share: one memfd, mapped by all of them.
//
// A memfd has no name, so nothing is left behind however the job ends, and it does not count
// against /dev/shm, which containers keep at 64 MiB. The file is sparse and large; a region is
// reserved with fallocate before it is touched, so that lack of memory is an error with a
// text and not a SIGBUS in the middle of a collective. Regions are never given back.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace lockstep {

inline constexpr std::size_t kAbortText = 1000;  // fits MPI_MAX_ERROR_STRING with XLA's prefix

// The beginning of the file. Everything in it starts as zero.
struct ArenaHeader {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> nonce;  // distinguishes this job's arena from any other file
  std::atomic<std::uint64_t> next;   // offset of the first byte not handed out
  // 0 healthy, 1 the text is being written, 2 failed.
  std::atomic<std::uint32_t> abort_state;
  char abort_text[kAbortText];

  // Open addressing: the directory of cliques. key 0 is free; offset 0 is being built, 1 failed.
  struct Entry {
    std::atomic<std::uint64_t> key;
    std::atomic<std::uint64_t> offset;
  };
  std::array<Entry, 8192> directory;

  // Lets the others of this host read the memory of each process (CrossMemoryReader). With a pid of
  // 0 nothing is known, and the next two are not set either. The flags are of processes of all
  // hosts: what one process of this host notices, the others need not.
  struct Process {
    std::atomic<std::uint64_t> pid;
    std::atomic<std::uint64_t> word_at;  // the address, in that process, of ...
    std::atomic<std::uint64_t> word;     // ... a word that no other process has
    std::atomic<std::uint32_t> left;     // not 0 once its program has ended
    std::atomic<std::uint32_t> lost;     // not 0 once it has died or its host cannot be reached
  };
  std::array<Process, 16384> processes;
};

class Arena {
 public:
  static constexpr std::size_t kSize = std::size_t{LOCKSTEP_SEGMENT_GIB} << 30;

  // Makes the file. Throws Error.
  static Descriptor create(std::uint64_t nonce);
  // Maps the file (the descriptor may be closed afterwards). Throws Error when it is not the arena
  // that the nonce names.
  Arena(int fd, std::uint64_t nonce);
  ~Arena();

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(base_); }
  // Null for a process beyond those that the header has room for.
  ArenaHeader::Process* process(int index) const;
  std::byte* at(std::uint64_t offset) const { return base_ + offset; }

  // A zeroed region whose pages are reserved, aligned to a page. Throws Error without memory.
  std::uint64_t allocate(std::size_t bytes) {
    const std::uint64_t offset = claim(bytes);
    place(offset, bytes);
    return offset;
  }
  // The same in two steps. `place` reserves the pages of a part that begins at a page, on the NUMA
  // node of the caller: a ring belongs on that of its writer.
  std::uint64_t claim(std::size_t bytes);
  void place(std::uint64_t offset, std::size_t bytes);
  static std::size_t whole_pages(std::size_t bytes);

  // The first caller's text stays. Every wait of every process of this host ends soon after.
  void abort(std::string_view text);
  // The listener is called with the text when the arena is aborted through this object, by the
  // thread that aborts it, until `remove_abort_listener` with the number that is returned. It is
  // called without a lock of the arena's, because it may wait for other hosts.
  using AbortListener = std::function<void(std::string_view)>;
  std::size_t add_abort_listener(AbortListener listener);
  // Returns when the listener has, if it is being called. A listener does not remove itself.
  void remove_abort_listener(std::size_t number);
  bool aborted() const { return header().abort_state.load(std::memory_order_acquire) != 0; }
  std::string abort_text() const;

 private:
  class Calling;

  const Descriptor fd_;
  std::byte* base_;
  std::mutex mutex_;  // guards what follows; not held while a listener is called
  std::size_t added_ = 0;
  std::map<std::size_t, AbortListener> abort_listeners_;
  std::size_t called_ = 0;  // the number of the listener that is being called; 0: none
  std::condition_variable returned_;
};

}  // namespace lockstep
