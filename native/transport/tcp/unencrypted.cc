#include "transport/tcp/unencrypted.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace lockstep {

Session::Result UnencryptedSession::read(std::span<std::byte> to, std::size_t& moved) {
  moved = 0;
  if (ended_) return *ended_;
  if (to.empty()) return Result::kDone;
  if (!unread_.empty()) {
    moved = std::min(to.size(), unread_.size());
    std::ranges::copy(unread_.first(moved), to.begin());
    unread_ = unread_.subspan(moved);
    return Result::kDone;
  }
  if (std::exchange(is_drained_, false)) return Result::kWantsRead;
  iovec parts[] = {{to.data(), to.size()}, {ahead_.data(), ahead_.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t n = recvmsg(fd_, &message, MSG_DONTWAIT);
  if (n == 0) return end(0);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Result::kWantsRead : end(errno);
  const auto bytes = static_cast<std::size_t>(n);
  moved = std::min(bytes, to.size());
  unread_ = std::span(ahead_).first(bytes - moved);
  is_drained_ = bytes < to.size() + ahead_.size();
  return Result::kDone;
}

Session::Result UnencryptedSession::write(std::span<const std::byte> head,
                                          std::span<const std::byte> body, std::size_t& moved) {
  moved = 0;
  if (ended_) return *ended_;
  if (head.empty() && body.empty()) return Result::kDone;
  // The system only reads them.
  iovec parts[] = {{const_cast<std::byte*>(head.data()), head.size()},
                   {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Result::kWantsWrite : end(errno);
  moved = static_cast<std::size_t>(n);
  return Result::kDone;
}

Session::Result UnencryptedSession::close() {
  if (ended_) return *ended_;
  return shutdown(fd_, SHUT_WR) == 0 ? Result::kDone : end(errno);
}

Session::Result UnencryptedSession::end(int error) {
  const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
  ended_ = closed ? Result::kClosed : Result::kFailed;
  problem_ =
      error == 0 ? "the other end closed the connection" : std::generic_category().message(error);
  return *ended_;
}

}  // namespace lockstep
