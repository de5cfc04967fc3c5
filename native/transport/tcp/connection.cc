#include "transport/tcp/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <thread>

namespace lockstep {
namespace {

// How long one write waits before it checks the job again.
constexpr std::chrono::milliseconds kPollInterval{50};
constexpr std::chrono::microseconds kRetryInterval{20};
constexpr std::chrono::milliseconds kNoticeInterval{1};

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> bytes_of(const Frame& frame) {
  return std::as_bytes(std::span(&frame, 1));
}

// The thread that holds the lock may be stuck until a deadline of its own.
bool lock(std::unique_lock<std::mutex>& wanted, const Deadline& deadline) {
  while (!wanted.try_lock()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kRetryInterval);
  }
  return true;
}

}  // namespace

// Breaks the connection when an exception ends a send: want of memory may leave half a frame, here
// or in the socket. It lives while the send lock is held.
class Connection::BreakOnException {
 public:
  explicit BreakOnException(Connection& connection) : connection_(connection) {}
  ~BreakOnException() {
    if (std::uncaught_exceptions() == before_) return;
    connection_.head_.clear();
    connection_.break_off();
    std::lock_guard lock(connection_.release_lock_);
    connection_.sends_urgent_ = false;
  }
  BreakOnException(const BreakOnException&) = delete;
  BreakOnException& operator=(const BreakOnException&) = delete;

 private:
  Connection& connection_;
  const int before_ = std::uncaught_exceptions();
};

void Connection::stop(const Deadline& deadline) {
  std::unique_lock send_lock(send_lock_, std::defer_lock);
  if (lock(send_lock, deadline)) broken_ = true;
}

void Connection::break_off() {
  broken_ = true;
  shutdown(fd_.get(), SHUT_RDWR);
}

Connection::Result Connection::send(Frame frame, std::span<const std::byte> header,
                                    std::span<const std::byte> rest, const WaitLimits& limits) {
  frame.bytes = static_cast<std::uint32_t>(header.size() + rest.size());
  std::unique_lock send_lock(send_lock_, std::defer_lock);
  if (!lock(send_lock, limits.deadline)) return Result::kLate;
  if (broken_) return Result::kBroken;
  const BreakOnException guard(*this);
  Result how = write_unsent(limits);
  if (how == Result::kAll) {
    take_releases(head_);
    append(head_, bytes_of(frame));
    append(head_, header);
    how = write(head_, rest, limits);
    head_.clear();
  }
  return end_frame(send_lock, how, limits);
}

void Connection::add_release(const Frame& frame, bool at_once) {
  std::lock_guard lock(release_lock_);
  append(releases_, bytes_of(frame));
  urgent_ = urgent_ || at_once;
}

// The thread with the send lock sends from now on what becomes urgent.
void Connection::take_releases(std::vector<std::byte>& to) {
  std::lock_guard lock(release_lock_);
  append(to, releases_);
  releases_.clear();
  urgent_ = false;
  sends_urgent_ = true;
}

// A rank that has read does not wait for one that sends: on a slow link the latter has the lock
// most of the time, and the other host waits for the release.
Connection::Result Connection::send_urgent(const WaitLimits& limits) {
  std::unique_lock send_lock(send_lock_, std::defer_lock);
  for (;;) {
    {
      std::lock_guard lock(release_lock_);
      if (!urgent_ || sends_urgent_) return Result::kAll;
      if (send_lock.try_lock()) break;
    }
    if (limits.deadline.passed()) return Result::kLate;
    std::this_thread::sleep_for(kRetryInterval);
  }
  const BreakOnException guard(*this);
  return end_frame(send_lock, broken_ ? Result::kBroken : write_unsent(limits), limits);
}

// Gives up the send lock, once nothing is urgent. `how` the frame went out.
Connection::Result Connection::end_frame(std::unique_lock<std::mutex>& send_lock, Result how,
                                         const WaitLimits& limits) {
  for (;;) {
    // Half a frame may have gone out: nothing can follow it.
    if (how != Result::kAll) break_off();
    {
      std::lock_guard lock(release_lock_);
      if (broken_ || !urgent_) {
        sends_urgent_ = false;
        send_lock.unlock();
        return how;
      }
    }
    take_releases(head_);
    how = write(head_, {}, limits);
    head_.clear();
  }
}

Connection::Result Connection::write(std::span<const std::byte> head,
                                     std::span<const std::byte> body, const WaitLimits& limits) {
  return write_some(head, body, limits).how;
}

Connection::Written Connection::write_some(std::span<const std::byte> head,
                                           std::span<const std::byte> body,
                                           const WaitLimits& limits) {
  const auto start = Clock::now();
  auto cut = Clock::time_point::max();
  std::size_t written = 0;
  const std::size_t all = head.size() + body.size();
  while (written < all) {
    std::size_t moved = 0;
    const Session::Result result = session_->write(head, body, moved);
    written += moved;
    const std::size_t of_head = std::min(moved, head.size());
    head = head.subspan(of_head);
    body = body.subspan(moved - of_head);
    if (result == Session::Result::kDone) continue;
    if (result != Session::Result::kWantsRead && result != Session::Result::kWantsWrite)
      return {Result::kBroken, written};
    const auto now = Clock::now();
    if (limits.abort->load(std::memory_order_acquire) != 0) cut = std::min(cut, now + grace_);
    if (limits.deadline.passed() || now >= cut) return {Result::kLate, written};
    if (limits.stop != nullptr && limits.stop->load() != 0) return {Result::kLate, written};
    if (limits.wake_up != nullptr && now >= start + kLongWait) limits.wake_up->notify();
    wait_for(fd_.get(), result == Session::Result::kWantsWrite, now + kPollInterval);
  }
  return {Result::kAll, written};
}

std::unique_lock<std::mutex> Connection::lock_message(const Deadline& deadline) {
  std::unique_lock whole(message_lock_, std::defer_lock);
  lock(whole, deadline);
  return whole;
}

bool Connection::send_part(const Frame& frame, std::span<const std::byte> part,
                           const WaitLimits& limits) {
  std::unique_lock send_lock(send_lock_, std::defer_lock);
  if (!lock(send_lock, limits.deadline) || broken_) return false;
  Result how = write_unsent(limits);
  if (how == Result::kAll) {
    const auto head = bytes_of(frame);
    unsent_.reserve(head.size() + part.size());
    unsent_.assign(head.begin(), head.end());
    append(unsent_, part);
    how = write_unsent(limits);
  }
  if (how == Result::kBroken) break_off();
  return how == Result::kAll;
}

Connection::Result Connection::write_unsent(const WaitLimits& limits) {
  if (unsent_.empty()) return Result::kAll;
  const auto [how, bytes] = write_some(unsent_, {}, limits);
  if (bytes == unsent_.size())
    std::vector<std::byte>().swap(unsent_);
  else
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(bytes));
  return how;
}

bool Connection::try_notices(std::vector<Notice>& notices, std::span<const std::byte> body,
                             const std::atomic<std::uint32_t>& abort) {
  const WaitLimits at_once{&abort, Deadline(1e-9), {}};
  std::erase_if(notices,
                [&](Notice& notice) { return notice.to->try_notice(notice, body, at_once); });
  return notices.empty();
}

void Connection::send_notices(std::vector<Notice> notices, std::span<const std::byte> body,
                              const std::atomic<std::uint32_t>& abort,
                              std::chrono::milliseconds grace) {
  const auto end = Clock::now() + grace;
  while (!try_notices(notices, body, abort) && Clock::now() < end)
    std::this_thread::sleep_for(kNoticeInterval);
}

// Sends what goes out at once. False: something is left, or another thread sends.
bool Connection::try_notice(Notice& notice, std::span<const std::byte> body,
                            const WaitLimits& limits) {
  std::unique_lock send_lock(send_lock_, std::try_to_lock);
  if (!send_lock.owns_lock()) return false;
  if (broken_) return true;
  const BreakOnException guard(*this);
  if (!std::exchange(notice.is_begun, true)) {
    notice.frame.bytes = static_cast<std::uint32_t>(body.size());
    std::lock_guard lock(release_lock_);
    append(unsent_, std::exchange(releases_, {}));
    urgent_ = false;
    append(unsent_, bytes_of(notice.frame));
    append(unsent_, body);
  }
  const Result how = write_unsent(limits);
  if (how == Result::kBroken) break_off();
  return how != Result::kLate;
}

}  // namespace lockstep
