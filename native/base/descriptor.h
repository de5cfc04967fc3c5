// What the engine needs of file descriptors: one that has an owner, and waits that have an end.
#pragma once

#include <utility>

#include "base/futex_wait.h"

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
  int release() { return std::exchange(fd_, -1); }  // the caller closes it

 private:
  int fd_;
};

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

// Has `epoll` report `owner` when there is something to read.
bool watch_input(int epoll, int fd, void* owner);

// Whether the socket can be read or written, or has an error, by that time at the latest.
bool wait_for(int fd, bool to_write, Clock::time_point end);

}  // namespace lockstep
