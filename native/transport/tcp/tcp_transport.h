// The transport to processes of other hosts: copies of rings, filled by frames that come over TCP.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "transport/peers.h"
#include "transport/tcp/channel_io.h"
#include "transport/transport.h"

namespace lockstep {

class TcpTransport : public Transport {
 public:
  // A send without limits of its own waits `timeout_seconds`, notifies `wake_up` when that takes
  // long, and ends when `abort` is set. The references outlive this.
  TcpTransport(Peers& peers, ChannelIo& io, const std::atomic<std::uint32_t>& abort,
               double timeout_seconds, const WakeUp& wake_up)
      : peers_(peers),
        io_(io),
        abort_(abort),
        timeout_seconds_(timeout_seconds),
        wake_up_(wake_up) {}

  std::byte* allocate_copy(std::size_t bytes) override;
  std::unique_ptr<SendChannel> open(const ChannelId& id, const SendRing& ring) override;
  std::unique_ptr<ReceiveChannel> open(const ChannelId& id, const ReceiveRing& ring) override;
  WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                  std::size_t bytes) override {
    return io_.wait(counter, target, limits, bytes <= kReceivesItself);
  }
  const std::atomic<std::uint32_t>* has_left(int process) const override {
    return &peers_.has_left(process);
  }

 private:
  // A rank receives the messages of collectives of up to so many bytes itself. In larger ones a
  // process sends and receives at the same time.
  static constexpr std::size_t kReceivesItself = 64 << 10;
  // A rank that receives itself does not read the connections for stripes.
  static_assert(kReceivesItself < 2 * Stripes::kMinStripe);

  class Channel;
  WaitLimits limits() const { return {&abort_, Deadline(timeout_seconds_), {}, &wake_up_}; }

  Peers& peers_;
  ChannelIo& io_;
  const std::atomic<std::uint32_t>& abort_;
  const double timeout_seconds_;
  const WakeUp& wake_up_;
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::mutex mutex_;  // guards `copies_`
  std::vector<std::unique_ptr<std::byte, Unmap>> copies_;
};

}  // namespace lockstep
