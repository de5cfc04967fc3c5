#include "transport/tcp/socket_buffers.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep {

// Memory that is not touched is not resident: a connection carries frames in one direction.
ReceiveBuffer::ReceiveBuffer(std::size_t capacity)
    : capacity_(capacity), memory_(std::make_unique_for_overwrite<std::byte[]>(capacity)) {}

int ReceiveBuffer::fill(int fd) {
  std::memmove(memory_.get(), memory_.get() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const ssize_t n = recv(fd, memory_.get() + end_, capacity_ - end_, MSG_DONTWAIT);
  if (n == 0) return kEndOfStream;
  if (n < 0) return errno == EINTR ? EAGAIN : errno;
  end_ += static_cast<std::size_t>(n);
  return 0;
}

SendBuffer::SendBuffer(std::size_t capacity)
    : capacity_(capacity), memory_(std::make_unique_for_overwrite<std::byte[]>(capacity)) {}

int SendBuffer::flush(int fd) {
  while (sent_ < end_) {
    const ssize_t n = send(fd, memory_.get() + sent_, end_ - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0)
      sent_ += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      return errno;
  }
  sent_ = end_ = 0;
  return 0;
}

}  // namespace lockstep
