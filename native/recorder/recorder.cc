#include "recorder/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/error.h"
#include "recorder/tsc_clock.h"

namespace lockstep {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kCliqueBytes = 65536;
constexpr std::size_t kRingHeader = 64;
constexpr std::size_t kRingBytes = kRingHeader + Recorder::kEntries * sizeof(RecordEntry);
// Address space for every device a process may have; what is not used takes no memory.
constexpr std::size_t kMaxRings = 4096;
constexpr std::uint64_t kSmall = 4096;  // bytes
constexpr std::size_t kMapped = kHeaderBytes + kCliqueBytes + kMaxRings * kRingBytes;

void copy_text(char* to, std::size_t room, const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), room - 1));
}

bool holds(const Record& record) {
  return record.entry != nullptr &&
         record.entry->number.load(std::memory_order_relaxed) == record.number;
}

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

struct Recorder::Ring {
  std::atomic<std::uint64_t> written;
  std::int32_t device;
  std::int32_t local_index;
  std::byte unused[kRingHeader - 16];

  RecordEntry& entry(std::uint64_t number) {
    return reinterpret_cast<RecordEntry*>(this + 1)[(number - 1) % kEntries];
  }
};

struct Recorder::Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t entry_bytes;
  std::uint32_t entries;
  std::atomic<std::uint32_t> rings;
  std::uint32_t ring_bytes;
  std::uint32_t process;
  std::uint32_t num_processes;
  std::uint32_t pid;
  std::uint32_t attempt;
  std::uint64_t nonce;
  std::int64_t monotonic_ns;
  std::int64_t realtime_ns;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> clique_words;
  char host[64];
  char label[112];
};

Recorder::Recorder(const RecorderOptions& options) : enabled_(options.enabled) {
  static_assert(sizeof(Header) == 256 && sizeof(Ring) == kRingHeader);
  const std::size_t bytes = kHeaderBytes + kCliqueBytes;
  if (options.path.empty() || !make_file(options.path, bytes)) {
    fd_ = memfd_create("lockstep-recorder", MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0)
      throw Error(std::string("lockstep: no memory for the recorder: ") + std::strerror(errno));
  }
  void* memory = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED)
    throw Error(std::string("lockstep: cannot map the recorder's file: ") + std::strerror(errno));
  base_ = static_cast<std::byte*>(memory);
  Header& header = *new (base_) Header{};
  header.version = 1;
  header.header_bytes = kHeaderBytes;
  header.entry_bytes = sizeof(RecordEntry);
  header.entries = kEntries;
  header.ring_bytes = kRingBytes;
  header.process = static_cast<std::uint32_t>(options.process);
  header.num_processes = static_cast<std::uint32_t>(options.num_processes);
  header.pid = static_cast<std::uint32_t>(getpid());
  header.attempt = static_cast<std::uint32_t>(options.attempt);
  header.nonce = options.nonce;
  header.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  header.realtime_ns = clock_ns(CLOCK_REALTIME);
  copy_text(header.host, sizeof(header.host), options.host);
  copy_text(header.label, sizeof(header.label), options.label);
  std::memcpy(header.magic, "LOCKSTEP", 8);
}

Recorder::~Recorder() {
  munmap(base_, kMapped);
  close(fd_);
}

bool Recorder::make_file(const std::string& path, std::size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  // Reserved now, so that a full disk is a message at the start and not a SIGBUS in a collective.
  const int code = fd < 0 ? errno : posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (code == 0) {
    fd_ = fd;
    return true;
  }
  problem_ = "the recorder cannot write " + path + ": " + std::strerror(code) +
             "; it records in memory only, which ends with the process";
  if (fd >= 0) {
    unlink(path.c_str());
    close(fd);
  }
  return false;
}

void Recorder::set_devices(const std::vector<int>& ids) {
  std::lock_guard lock(mutex_);
  if (!enabled_ || !rings_.empty()) return;
  const std::size_t wanted = std::min(ids.size(), kMaxRings);
  const std::size_t first = kHeaderBytes + kCliqueBytes;
  // Without room the job goes on unrecorded.
  if (posix_fallocate(fd_, static_cast<off_t>(first), static_cast<off_t>(wanted * kRingBytes)) != 0)
    return;
  for (std::size_t i = 0; i < wanted; ++i) {
    std::byte* memory = base_ + first + i * kRingBytes;
    auto* ring = new (memory) Ring{};
    ring->device = ids[i];
    ring->local_index = static_cast<std::int32_t>(i);
    rings_.push_back(ring);
  }
  header().rings.store(static_cast<std::uint32_t>(wanted), std::memory_order_release);
}

void Recorder::add_clique(std::uint64_t hash, const std::vector<int>& devices) {
  std::lock_guard lock(mutex_);
  const std::uint32_t used = header().clique_words.load(std::memory_order_relaxed);
  const std::size_t words = 3 + devices.size();
  if ((used + words) * sizeof(std::int32_t) > kCliqueBytes) return;
  auto* to = reinterpret_cast<std::uint32_t*>(base_ + kHeaderBytes) + used;
  to[0] = static_cast<std::uint32_t>(hash);
  to[1] = static_cast<std::uint32_t>(hash >> 32);
  to[2] = static_cast<std::uint32_t>(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i)
    to[3 + i] = static_cast<std::uint32_t>(devices[i]);
  header().clique_words.store(used + static_cast<std::uint32_t>(words), std::memory_order_release);
}

void Recorder::set_state(State state) { header().state.store(state, std::memory_order_release); }

Recorder::Ring* Recorder::ring(int device) const {
  const auto found = std::ranges::find(rings_, device, &Ring::device);
  return found == rings_.end() ? nullptr : *found;
}

Record Recorder::begin(Ring* ring, const Call& call, std::uint64_t clique, std::uint32_t sequence,
                       int rank) {
  return begin(ring, {.clique = clique,
                      .execution = call.origin.execution,
                      .channel = call.origin.channel,
                      .count = call.count,
                      .bytes = call.bytes(),
                      .sequence = sequence,
                      .op = static_cast<std::uint8_t>(call.op),
                      .dtype = static_cast<std::uint8_t>(call.dtype),
                      .reduction = static_cast<std::uint8_t>(call.reduction),
                      .entered_ns = nanoseconds(call.entered),
                      .rank = rank,
                      .site = call.origin.site});
}

Record Recorder::begin(Ring* ring, const Described& described) {
  if (ring == nullptr) return {};
  // Two cliques of one device may be entered by two threads.
  const std::uint64_t number = ring->written.fetch_add(1, std::memory_order_relaxed) + 1;
  RecordEntry* entry = &ring->entry(number);
  entry->number.store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
  entry->clique = described.clique;
  entry->execution = described.execution;
  entry->channel = described.channel;
  entry->count = described.count;
  entry->bytes = described.bytes;
  entry->sequence = described.sequence;
  entry->op = described.op;
  entry->dtype = described.dtype;
  entry->reduction = described.reduction;
  entry->state.store(RecordEntry::kEntered, std::memory_order_relaxed);
  entry->entered_ns = described.entered_ns;
  entry->arrived_ns.store(0, std::memory_order_relaxed);
  entry->done_ns.store(0, std::memory_order_relaxed);
  entry->rank = described.rank;
  entry->source = -1;
  entry->num_targets = 0;
  entry->site = described.site;
  entry->number.store(number, std::memory_order_release);
  return {entry, number};
}

void Recorder::entered(const Record& record, Clock::time_point when) {
  if (!holds(record)) return;
  record.entry->entered_ns = nanoseconds(when);
  record.entry->channel = 1;
}

void Recorder::arrived(const Record& record, Clock::time_point when) {
  if (holds(record)) record.entry->arrived_ns.store(nanoseconds(when), std::memory_order_relaxed);
}

void Recorder::finish(const Record& record, RecordEntry::State state) {
  if (!holds(record)) return;
  RecordEntry& entry = *record.entry;
  const bool done = state == RecordEntry::kDone;
  const auto arrived = entry.arrived_ns.load(std::memory_order_relaxed);
  // Moving so little takes less time than readers tell apart, and a reading would cost more.
  const bool is_small = done && arrived != 0 && entry.bytes <= kSmall;
  const auto now = is_small ? arrived : nanoseconds(TscClock::now());
  entry.done_ns.store(now, std::memory_order_relaxed);
  // The device did not have to wait for a peer.
  if (done && arrived == 0 && entry.op != static_cast<std::uint8_t>(Op::kPermute))
    entry.arrived_ns.store(entry.entered_ns, std::memory_order_relaxed);
  entry.state.store(state, std::memory_order_release);
}

void Recorder::finish_at(const Record& record, RecordEntry::State state, Clock::time_point when) {
  if (!holds(record)) return;
  record.entry->done_ns.store(nanoseconds(when), std::memory_order_relaxed);
  record.entry->state.store(state, std::memory_order_release);
}

void Recorder::add_source(const Record& record, int rank) {
  if (holds(record)) record.entry->source = rank;
}

void Recorder::add_target(const Record& record, int rank) {
  if (!holds(record)) return;
  RecordEntry& entry = *record.entry;
  if (entry.num_targets < 8) entry.targets[entry.num_targets] = rank;
  ++entry.num_targets;
}

}  // namespace lockstep
