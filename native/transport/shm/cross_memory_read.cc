#include "transport/shm/cross_memory_read.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxPieces = 63;  // of one system call; with one more, IOV_MAX is far
// Between two system calls the abort flag is looked at; this many bytes take some milliseconds.
constexpr std::size_t kMaxBytes = std::size_t{32} << 20;

// A random word by which a process is known. A process id alone is not enough: a dead process's id
// is given out again, and processes in different pid namespaces count separately.
const std::uint64_t& identity() {
  static std::mutex mutex;
  static std::uint64_t word = 0;
  static pid_t owner = 0;
  std::lock_guard lock(mutex);
  if (owner != getpid()) {  // the first call, or the first after a fork
    if (getentropy(&word, sizeof(word)) != 0) word = 0;
    owner = getpid();
  }
  return word;
}

// Yama's usual setting lets a process be read by its ancestors only. This adds the descendants of
// its parent: the launcher, which may read it anyway, and the launcher's other children, the peers.
// PR_SET_PTRACER_ANY would open it to every program of the user, for good. Under pid 1 the two
// would be the same; such jobs stay with the copies through shared memory. Without Yama this is an
// error of no consequence.
void permit_siblings() {
  if (const pid_t parent = getppid(); parent > 1)
    prctl(PR_SET_PTRACER, static_cast<unsigned long>(parent), 0, 0, 0);
}

// What one system call reads: pieces, then the word that says whose memory it was. The kernel holds
// on to one address space for the whole call, so the word vouches for the pieces.
class Batch {
 public:
  explicit Batch(const ArenaHeader::Process& peer)
      : pid_(static_cast<pid_t>(peer.pid.load(std::memory_order_acquire))),
        word_at_(peer.word_at.load(std::memory_order_relaxed)),
        word_(peer.word.load(std::memory_order_relaxed)) {}

  bool full() const { return count_ == kMaxPieces || bytes_ == kMaxBytes; }
  // Takes as much as there is room for; returns how much that was.
  std::size_t add(std::uint64_t from, std::byte* to, std::size_t bytes) {
    const std::size_t n = std::min(bytes, kMaxBytes - bytes_);
    push(from, to, n);
    return n;
  }
  // Empties the batch. Returns 0, or the reason in errno's terms; ESRCH also for another process.
  int read() {
    std::uint64_t found = ~word_;
    push(word_at_, &found, sizeof(found));
    const ssize_t got = process_vm_readv(pid_, to_, count_, from_, count_, 0);
    const auto expected = static_cast<ssize_t>(bytes_);
    count_ = 0;
    bytes_ = 0;
    if (got < 0) return errno;
    if (got != expected) return EFAULT;
    return found == word_ ? 0 : ESRCH;
  }

 private:
  void push(std::uint64_t from, void* to, std::size_t bytes) {
    from_[count_] = {reinterpret_cast<void*>(from), bytes};
    to_[count_] = {to, bytes};
    ++count_;
    bytes_ += bytes;
  }

  const pid_t pid_;
  const std::uint64_t word_at_;
  const std::uint64_t word_;
  iovec from_[kMaxPieces + 1];
  iovec to_[kMaxPieces + 1];
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

std::string reason_of(int code) {
  if (code == ESRCH) return "it has ended";
  if (code == EFAULT) return "its buffer is not there any more";
  return std::strerror(code);
}

}  // namespace

CrossMemoryReader::CrossMemoryReader(Arena& arena, int process,
                                     const std::vector<std::string>& labels, bool enabled)
    : arena_(arena), labels_(labels), enabled_(enabled && identity() != 0) {
  ArenaHeader::Process* own = arena_.process(process);
  if (!enabled_ || own == nullptr) return;
  permit_siblings();
  own->word_at.store(reinterpret_cast<std::uint64_t>(&identity()), std::memory_order_relaxed);
  own->word.store(identity(), std::memory_order_relaxed);
  own->pid.store(static_cast<std::uint64_t>(getpid()), std::memory_order_release);
}

bool CrossMemoryReader::is_self(const ArenaHeader::Process& peer) const {
  return peer.pid.load(std::memory_order_acquire) == static_cast<std::uint64_t>(getpid()) &&
         peer.word.load(std::memory_order_relaxed) == identity();
}

bool CrossMemoryReader::readable(int process) const {
  const ArenaHeader::Process* peer = arena_.process(process);
  if (!enabled_ || peer == nullptr || peer->pid.load(std::memory_order_acquire) == 0) return false;
  return Batch(*peer).read() == 0;
}

void CrossMemoryReader::read(int process, std::span<const MemoryPiece> pieces) const {
  if (arena_.aborted()) throw Error(arena_.abort_text());  // the buffers may be gone already
  const ArenaHeader::Process& peer = *arena_.process(process);
  // Processes of a job that share one process, as in tests: a copy that ThreadSanitizer sees.
  const bool self = is_self(peer);
  Batch batch(peer);
  const auto finish = [&] {
    if (const int code = batch.read(); code != 0) fail(process, reason_of(code));
    // Bytes that were written after their owner had given up come with the owner's abort.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (arena_.aborted()) throw Error(arena_.abort_text());
  };
  for (const MemoryPiece& piece : pieces) {
    if (self) std::memcpy(piece.to, reinterpret_cast<const void*>(piece.from), piece.bytes);
    for (std::size_t at = self ? piece.bytes : 0; at < piece.bytes;) {
      at += batch.add(piece.from + at, piece.to + at, piece.bytes - at);
      if (batch.full()) finish();
    }
  }
  finish();
}

void CrossMemoryReader::fail(int process, const std::string& reason) const {
  if (arena_.aborted()) throw Error(arena_.abort_text());
  throw Error("lockstep: could not read the memory of " +
              labels_[static_cast<std::size_t>(process)] + ": " + reason +
              ". If it is still running, LOCKSTEP_SINGLE_COPY=0 does without such reads.");
}

}  // namespace lockstep
