#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

// The peer sees slots and counters itself; what is left is to wake it.
class WakePeer : public SendChannel, public ReceiveChannel {
 public:
  explicit WakePeer(Counter& wake_up) : wake_up_(wake_up) {}
  void post_send(std::uint32_t, const Message&, const WaitLimits*) override { wake_up_.advance(); }
  void post_release(std::uint32_t, const WaitLimits*) override { wake_up_.advance(); }

 private:
  Counter& wake_up_;
};

std::unique_ptr<WakePeer> waking(Counter* wake_up) {
  return wake_up == nullptr ? nullptr : std::make_unique<WakePeer>(*wake_up);
}

}  // namespace

std::unique_ptr<SendChannel> ShmTransport::open(const ChannelId&, const SendRing& ring) {
  return waking(ring.peer_wake_up);
}

std::unique_ptr<ReceiveChannel> ShmTransport::open(const ChannelId&, const ReceiveRing& ring) {
  return waking(ring.peer_wake_up);
}

const std::atomic<std::uint32_t>* ShmTransport::has_left(int process) const {
  const ArenaHeader::Process* known = arena_.process(process);
  return reports_ends_ && known != nullptr ? &known->left : nullptr;
}

}  // namespace lockstep
