// What the thread that reads from other hosts survives, and what it leaves in memory.
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <string>

#include "api/mpitrampoline/state.h"
#include "base/log.h"
#include "check.h"
#include "hosts.h"

// Memory that is not there: of allocations of this size and more.
static std::atomic<std::size_t> refused_from{SIZE_MAX};

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = bytes < refused_from.load() ? std::malloc(bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep::testing::progress_threads {

TEST(want_of_memory_fails_the_job_with_a_text) {
  Impostor one;
  refused_from = 100'000;
  one.send({.kind = Frame::kMessage, .clique = 1, .bytes = 200'000});
  eventually([&] { return one.host.arena->aborted(); }, "an error");
  refused_from = SIZE_MAX;
  CHECK_EQUAL(one.host.arena->abort_text(),
              "lockstep: process 0 can no longer receive from other hosts: std::bad_alloc.");
  CHECK_EQUAL(one.host.endpoint->next_control(20).process, int{ControlMessage::kOver});
}

TEST(an_exception_of_any_kind_does_not_end_the_process) {
  Impostor one;
  const std::size_t listener =
      one.host.arena->add_abort_listener([](std::string_view) { throw 1; });
  one.send({.kind = Frame::kAbort, .bytes = 4}, "text");
  CHECK_EQUAL(one.host.endpoint->next_control(20).process, int{ControlMessage::kOver});
  CHECK_EQUAL(one.host.arena->abort_text(), "text");
  one.host.arena->remove_abort_listener(listener);
}

// A stderr that takes nothing: a pipe that is full.
class FullPipe {
 public:
  FullPipe() : before_(dup(STDERR_FILENO)) {
    int ends[2];
    CHECK_EQUAL(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_ = Descriptor(ends[0]);
    const Descriptor write_end(ends[1]);
    while (write(write_end.get(), &ends, 1) == 1) {
    }
    fcntl(write_end.get(), F_SETFL, 0);
    dup2(write_end.get(), STDERR_FILENO);
  }
  ~FullPipe() { dup2(before_.get(), STDERR_FILENO); }
  std::string take() const {
    std::string text;
    char part[4096];
    for (ssize_t n; (n = read(read_.get(), part, sizeof(part))) > 0;)
      text.append(part, static_cast<std::size_t>(n));
    return text;
  }

 private:
  Descriptor before_, read_;
};

TEST(a_line_on_a_full_stderr_holds_nothing_up) {
  Two two(true);
  const FullPipe full;
  be_refused(two.hosts[0].listener.address, "GET / HTTP/1.1\r\n\r\n");
  two.exchange(1);
  CHECK(two.healthy());
  CHECK_EQUAL(full.take().find("lockstep"), std::string::npos);
  log_or_drop("a line");
  CHECK_EQUAL(full.take(), "a line\n");
  log_or_drop(std::string(100'000, 'x'));
  CHECK_EQUAL(full.take(), std::string(PIPE_BUF - 1, 'x') + "\n");
}

TEST(messages_of_unknown_groups_are_kept_within_bounds) {
  Channels channels;
  const std::vector<std::byte> message(Channels::kMaxMessage);
  const auto fill = [&](int process) {
    std::uint32_t count = 0;
    const std::string error =
        ERROR_OF(for (;; ++count) channels.keep(ChannelId{1, count, process}, 0, message));
    CHECK_CONTAINS(error, "groups that are not known here yet");
    return count;
  };
  const std::uint32_t kept = fill(1);
  CHECK(kept >= 100 && kept * message.size() <= Channels::kMaxEarlyBytes);
  CHECK_EQUAL(fill(2), kept);  // each process has its own
  // What a group takes makes room.
  Counter written, read;
  std::vector<std::byte> slots(message.size());
  channels.open(ChannelId{1, 7, 1}, ReceiveRing{slots.data(), 1, slots.size(), &written, &read});
  channels.keep(ChannelId{2, 0, 1}, 0, message);
  CHECK_CONTAINS(ERROR_OF(channels.keep(ChannelId{2, 1, 1}, 0, message)), "not known here yet");
  // Small ones count with what it takes to keep them.
  std::uint32_t small = 0;
  CHECK_CONTAINS(ERROR_OF(for (;; ++small) channels.keep(ChannelId{3, small, 3}, 0,
                                                         std::vector<std::byte>(kSlotHeader))),
                 "not known here yet");
  CHECK(small < Channels::kMaxEarlyBytes / 256);
}

// A sanitizer has its own memory between the blocks, far too much to search.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// How often the writable memory of this process holds these bytes, which are given inverted.
int count_in_memory(const std::array<unsigned char, 32>& inverted) {
  const Descriptor memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::ifstream maps("/proc/self/maps");
  static std::array<unsigned char, 1 << 16> window;
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" rw-p") == std::string::npos) continue;
    char* rest = nullptr;
    const std::uint64_t begin = std::strtoull(line.c_str(), &rest, 16);
    const std::uint64_t end = std::strtoull(rest + 1, nullptr, 16);
    const auto own = reinterpret_cast<std::uint64_t>(window.data());
    for (std::uint64_t at = begin; at < end; at += window.size() - 32) {
      if (at + window.size() > own && at < own + window.size()) continue;
      const ssize_t n = pread(memory.get(), window.data(), window.size(), static_cast<off_t>(at));
      if (n < 0) break;
      for (ssize_t i = 0; i + 32 <= n; ++i) {
        // Most bytes are none of the key's first: the rest is looked at there only.
        const void* first = std::memchr(&window[static_cast<std::size_t>(i)],
                                        static_cast<unsigned char>(~inverted[0]),
                                        static_cast<std::size_t>(n - 31 - i));
        if (first == nullptr) break;
        i = static_cast<const unsigned char*>(first) - window.data();
        std::size_t same = 1;
        while (same < 32 && window[static_cast<std::size_t>(i) + same] ==
                                static_cast<unsigned char>(~inverted[same]))
          ++same;
        if (same == 32) ++found;
      }
    }
  }
  return found;
}

// Both sides of a job of two hosts, as Python starts the one and a test the other.
std::string key_after_start() {
  std::array<unsigned char, 32> inverted;
  std::random_device random;
  for (auto& byte : inverted) byte = static_cast<unsigned char>(random());
  Host host;
  const Listener listener = listen_anywhere();
  const Descriptor arena(lockstep_create_arena(kNonce));
  Given given(0, host.listener.address, arena.get(), listener.fd.get());
  std::string secret(32, ' ');
  for (std::size_t i = 0; i < 32; ++i) secret[i] = static_cast<char>(~inverted[i]);
  given.options.key = secret.data();
  auto joining = in_background([&] {
    EndpointOptions options = host.options({listener.address, ""});
    options.key.assign(reinterpret_cast<const std::byte*>(secret.data()),
                       reinterpret_cast<const std::byte*>(secret.data()) + 32);
    host.endpoint = std::make_unique<Endpoint>(options, 1, kNonce, kLabels, host.arena);
  });
  if (lockstep_start(&given.options) != 0) return lockstep_last_error();
  joining.get();
  if (count_in_memory(inverted) == 0) return "the test does not find the caller's copy";
  explicit_bzero(secret.data(), secret.size());
  int left = 1;
  for (int i = 0; i < 20 && left != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    left = count_in_memory(inverted);
  }
  return left == 0 ? "" : std::to_string(left) + " copies of the key are left";
}

TEST(the_key_is_wiped_from_memory) { CHECK_EQUAL(in_child(key_after_start), ""); }
#endif

}  // namespace lockstep::testing::progress_threads
