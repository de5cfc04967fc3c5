#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMagic = 0x316b636f4c707453;

[[noreturn]] void fail(const std::string& what, int code) {
  throw Error("lockstep: " + what + ": " + std::strerror(code) +
              ". The processes of one host share this memory; `lockstep doctor` shows the limits "
              "that apply here.");
}

void reserve(int fd, std::size_t offset, std::size_t bytes) {
  int code;
  do {
    code = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0)
    fail("cannot reserve " + std::to_string(bytes >> 10) + " KiB of shared memory", code);
}

}  // namespace

Descriptor Arena::create(std::uint64_t nonce) {
  Descriptor fd(memfd_create("lockstep-arena", MFD_CLOEXEC));
  if (fd.get() < 0) fail("memfd_create failed", errno);
  if (ftruncate(fd.get(), kSize) != 0) fail("cannot size the shared memory", errno);
  reserve(fd.get(), 0, whole_pages(sizeof(ArenaHeader)));
  void* page = mmap(nullptr, sizeof(ArenaHeader), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) fail("cannot map the shared memory", errno);
  auto* header = static_cast<ArenaHeader*>(page);
  header->nonce.store(nonce);
  header->next.store(whole_pages(sizeof(ArenaHeader)));
  header->magic.store(kMagic, std::memory_order_release);
  munmap(page, sizeof(ArenaHeader));
  return fd;
}

Arena::Arena(int fd, std::uint64_t nonce) : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
  if (fd_.get() < 0) fail("cannot keep the shared memory open", errno);
  if (lseek(fd_.get(), 0, SEEK_END) != static_cast<off_t>(kSize))
    throw Error("lockstep: the file offered as this job's shared memory has another size.");
  void* base =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (base == MAP_FAILED)
    fail("cannot map the shared memory (is the address space limited, `ulimit -v`?)", errno);
  base_ = static_cast<std::byte*>(base);
  if (header().magic.load(std::memory_order_acquire) != kMagic || header().nonce.load() != nonce) {
    munmap(base_, kSize);
    throw Error("lockstep: the file offered as this job's shared memory is not this job's.");
  }
}

Arena::~Arena() { munmap(base_, kSize); }

ArenaHeader::Process* Arena::process(int index) const {
  auto& all = header().processes;
  const auto at = static_cast<std::size_t>(index);
  return at < all.size() ? &all[at] : nullptr;
}

// aarch64 has kernels with pages of 4, 16 and 64 KiB.
std::size_t Arena::whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

std::uint64_t Arena::claim(std::size_t bytes) {
  const std::size_t size = whole_pages(bytes);
  const std::uint64_t offset = header().next.fetch_add(size);
  if (offset + size > kSize)
    throw Error("lockstep: the shared memory of this job is used up (" +
                std::to_string(kSize >> 30) +
                " GiB of address space): too many different device groups.");
  return offset;
}

void Arena::place(std::uint64_t offset, std::size_t bytes) {
  const std::size_t size = whole_pages(bytes);
  reserve(fd_.get(), offset, size);
#ifdef MADV_POPULATE_WRITE
  // Page faults inside the first collectives would cost more than the collectives; a kernel
  // without this advice takes them then.
  madvise(base_ + offset, size, MADV_POPULATE_WRITE);
#endif
}

// Gives up the lock while a listener is called, which stays in the map until then.
class Arena::Calling {
 public:
  Calling(Arena& arena, std::unique_lock<std::mutex>& lock, std::size_t number)
      : arena_(arena), lock_(lock) {
    arena_.called_ = number;
    lock_.unlock();
  }
  ~Calling() {
    lock_.lock();
    arena_.called_ = 0;
    arena_.returned_.notify_all();
  }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  Arena& arena_;
  std::unique_lock<std::mutex>& lock_;
};

// An abort allocates nothing: want of memory may be what the text is about.
void Arena::abort(std::string_view text) {
  std::uint32_t healthy = 0;
  if (!header().abort_state.compare_exchange_strong(healthy, 1)) return;
  const std::string_view kept = text.substr(0, kAbortText - 1);
  *std::ranges::copy(kept, header().abort_text).out = '\0';
  header().abort_state.store(2, std::memory_order_release);
  // A process that reads what this one writes from here on finds the flag afterwards: see
  // CrossMemoryReader.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::unique_lock lock(mutex_);
  for (const auto& [number, listener] : abort_listeners_) {
    const Calling calling(*this, lock, number);
    listener(kept);
  }
}

std::size_t Arena::add_abort_listener(AbortListener listener) {
  std::lock_guard lock(mutex_);
  abort_listeners_.emplace(++added_, std::move(listener));
  return added_;
}

void Arena::remove_abort_listener(std::size_t number) {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [&] { return called_ != number; });
  abort_listeners_.erase(number);
}

std::string Arena::abort_text() const {
  // The caller knows that the job has failed, perhaps before the text is there. The writer needs
  // microseconds for it; it may have died.
  for (int i = 0; i < 200 && header().abort_state.load(std::memory_order_acquire) != 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (header().abort_state.load(std::memory_order_acquire) != 2)
    return "lockstep: another process failed and left no text.";
  return std::string(header().abort_text, strnlen(header().abort_text, kAbortText));
}

}  // namespace lockstep
