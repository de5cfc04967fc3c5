// A connection to a process of another host, on which this process sends frames. Any thread may
// send: it holds the send lock while its frame goes out, and sends the releases that wait as well.
//
// Locks are taken in the order in which they are declared. No thread waits for another lock, or for
// the other process, under `release_lock_`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/futex_wait.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/session.h"
#include "transport/tcp/sockets.h"

namespace lockstep {

class Connection {
 public:
  enum class Result { kAll, kBroken, kLate };

  // `grace`: how long what is being sent may take to go out once the job has failed.
  Connection(Descriptor fd, std::unique_ptr<Session> session, std::chrono::milliseconds grace)
      : fd_(std::move(fd)), session_(std::move(session)), grace_(grace) {}

  // Its owner uses these for handshake and greeting, before another thread knows the connection.
  Session& session() { return *session_; }
  void replace(std::unique_ptr<Session> session) { session_ = std::move(session); }
  Result write(std::span<const std::byte> head, std::span<const std::byte> body,
               const WaitLimits& limits);

  int fd() const { return fd_.get(); }
  // In a forked child: closes its copy of the descriptor.
  void abandon() { fd_ = Descriptor(); }
  // Nothing is sent any more. Returns when the thread that sends is done, or at the deadline.
  void stop(const Deadline& deadline);

  // Sends a frame, whose bytes are `header` and `rest`. Half of it may have gone out before it is
  // kLate: the connection is broken then.
  Result send(Frame frame, std::span<const std::byte> header, std::span<const std::byte> rest,
              const WaitLimits& limits);

  // A release goes with the next frame, whichever thread sends that; `at_once`, it waits for none,
  // and `send_urgent` has to follow.
  void add_release(const Frame& frame, bool at_once);
  // Returns when the urgent releases are on their way, or a thread has the lock that sends them.
  Result send_urgent(const WaitLimits& limits);

  // A message of parts that may be late: what is left half sent goes out before the next frame, so
  // a late message does not cost the job its connection.
  std::unique_lock<std::mutex> lock_message(const Deadline& deadline);  // not locked: too late
  bool send_part(const Frame& frame, std::span<const std::byte> part, const WaitLimits& limits);

  // A frame about the end of the job or of this process, for one connection.
  struct Notice {
    Connection* to;
    Frame frame;
    bool is_begun = false;  // it goes out before anything else
  };
  // Tries each of them once and forgets those that are done; false when some are left. So a process
  // that reads nothing delays no other one.
  static bool try_notices(std::vector<Notice>& notices, std::span<const std::byte> body,
                          const std::atomic<std::uint32_t>& abort);
  // Tries again until all are done, for the grace period at most. What is left then goes out before
  // the next frame, if there is one.
  static void send_notices(std::vector<Notice> notices, std::span<const std::byte> body,
                           const std::atomic<std::uint32_t>& abort,
                           std::chrono::milliseconds grace);

  // Other connections to the same process, which carry stripes of large messages. Set before this
  // one is shared.
  std::vector<std::unique_ptr<Connection>> further;

 private:
  class BreakOnException;
  struct Written {
    Result how;
    std::size_t bytes;  // of head and body together, that have gone out
  };

  Written write_some(std::span<const std::byte> head, std::span<const std::byte> body,
                     const WaitLimits& limits);
  Result write_unsent(const WaitLimits& limits);
  Result end_frame(std::unique_lock<std::mutex>& send_lock, Result how, const WaitLimits& limits);
  void take_releases(std::vector<std::byte>& to);
  bool try_notice(Notice& notice, std::span<const std::byte> body, const WaitLimits& limits);
  void break_off();

  Descriptor fd_;
  std::unique_ptr<Session> session_;
  const std::chrono::milliseconds grace_;

  std::mutex message_lock_;  // held while a message of parts is sent
  std::mutex send_lock_;     // held while a frame is sent; guards what follows
  bool broken_ = false;
  std::vector<std::byte> unsent_;  // the rest of a late part or notice: goes out first
  std::vector<std::byte> head_;    // of the frame that is sent

  std::mutex release_lock_;          // guards what follows
  std::vector<std::byte> releases_;  // go before the next frame
  bool urgent_ = false;              // and do not wait for one
  // Whether the thread with the send lock sends what is urgent before it gives the lock up. One
  // that sends a part of a message does not: its deadline may be short.
  bool sends_urgent_ = false;
};

}  // namespace lockstep
