// How the messages of channels and their releases go over the connections to other hosts.
#pragma once

#include <unistd.h>

#include <cstdint>

#include "base/futex_wait.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/sender_threads.h"
#include "transport/transport.h"

namespace lockstep {

// The TCP transport's way to the connections, which the network of the job has made.
class ChannelIo {
 public:
  virtual Channels& channels() = 0;
  // Sends message `number` of the channel. Returns when it is on its way, or the other process has
  // left; throws Error when it cannot be sent.
  virtual void send(const ChannelId& channel, std::uint32_t number, const Message& message,
                    const WaitLimits& limits) = 0;
  // Reports that message `number` of the channel has been released: `at_once`, or with the next
  // frame to that process. The sender can wait for the latter forever.
  virtual void release(const ChannelId& channel, std::uint32_t number, const WaitLimits& limits,
                       bool at_once) = 0;
  // `wait_until`, for a counter that a message from another host advances. `receives`: this thread
  // reads from the connections meanwhile.
  virtual WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                          bool receives) = 0;

 protected:
  ~ChannelIo() = default;
};

// Sends messages on the connections to one process: large ones as stripes, all at the same time.
class MessageSender {
 public:
  // `threads` send stripes, besides the thread that has the message.
  explicit MessageSender(std::uint32_t threads) : threads_(threads) {}

  Connection::Result send(Connection& first, const ChannelId& channel, std::uint32_t number,
                          const Message& message, const WaitLimits& limits);
  static Connection::Result release(Connection& first, const ChannelId& channel,
                                    std::uint32_t number, const WaitLimits& limits, bool at_once);

 private:
  Connection::Result send_stripes(Connection& first, const Frame& frame, const Message& message,
                                  const Stripes& stripes, const WaitLimits& limits);

  const pid_t owner_ = getpid();
  SenderThreads threads_;
};

}  // namespace lockstep
