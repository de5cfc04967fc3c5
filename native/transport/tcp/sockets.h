// What the endpoint needs of TCP sockets: all are non-blocking, and every wait has an end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/futex_wait.h"

namespace lockstep {

// A descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Nothing listens there.
class Refused : public Error {
 public:
  using Error::Error;
};

// A connection to a numeric address, "10.0.0.1:4411" or "[fe80::1]:4411". Throws Error with the
// system's reason when there is none by then, Refused for one of these reasons, and what `check`
// throws, which is called meanwhile.
Descriptor connect_to(const std::string& address, Clock::time_point end,
                      const std::function<void()>& check = {});

// The next connection of a listening socket; -1 when there is none.
Descriptor accept_from(int listener);

// Where a socket listens, in the form that `connect_to` takes.
std::string address_of(int fd);

// The address of the other end.
std::string name_of_peer(int fd);

// Tells machines apart: the same in all containers and network namespaces of one. 0: not known.
std::uint32_t machine_number();

// For a connection to a process of the same machine, on which nothing big was sent yet: lets it
// hold little, unless the way is made longer than it is. What is sent then stays in a cache until
// it is read; the system's own choice lets some MiB be on their way, which is slower than memory.
void bound_send_buffer(int fd);
// What such a connection holds, with the system's own data.
inline constexpr int kBoundedSendBuffer = 256 << 10;

// While it lives, a write(2) to a pipe or connection that the other end has closed is an error and
// no signal.
class NoBrokenPipe {
 public:
  NoBrokenPipe();
  ~NoBrokenPipe();
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  bool blocked_;  // by us
};

// Whether the other end, which sends nothing, has closed the connection.
bool is_closed(int fd);

// Has `epoll` report `owner` when there is something to read.
bool watch_input(int epoll, int fd, void* owner);

// Whether the socket can be read or written, or has an error, by that time at the latest.
bool wait_for(int fd, bool to_write, Clock::time_point end);

}  // namespace lockstep
