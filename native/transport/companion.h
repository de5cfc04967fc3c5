// Another transport that carries the messages of the channels between hosts, while the network
// keeps what only it does: it authenticates the processes, carries control messages and aborts, and
// detects which processes have left or are lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

class Companion {
 public:
  static constexpr std::size_t kMaxGreeting = 64 << 10;

  // Goes to each process of another host, in the greeting: authenticated, and always encrypted.
  virtual std::vector<std::byte> greeting() = 0;
  // Reads the greeting of another process. Throws Error when it is not accepted.
  virtual void greeted(int process, std::span<const std::byte> greeting) = 0;

  // The program of this process has ended: sends all that waits.
  virtual void flush() = 0;
  // How many messages have been sent to that process; after `flush`, which sends the last.
  virtual std::uint64_t sent_to(int process) = 0;
  // The program of that process has ended after it had sent so many messages to this one.
  virtual void left(int process, std::uint64_t sent) = 0;

  // Nothing is sent or received any more.
  virtual void stop() = 0;

 protected:
  ~Companion() = default;
};

}  // namespace lockstep
