#include "transport/tcp/tcp_transport.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace lockstep {

class TcpTransport::Channel : public SendChannel, public ReceiveChannel {
 public:
  // `count`: the slots of a ring that is read.
  Channel(const TcpTransport& transport, const ChannelId& id, std::uint32_t count = 0)
      : transport_(transport), id_(id), report_every_(count / 2) {}

  void post_send(std::uint32_t number, const Message& message, const WaitLimits* limits) override {
    transport_.io_.send(id_, number, message, limits ? *limits : transport_.limits());
  }
  void post_release(std::uint32_t number, const WaitLimits* limits) override {
    // A report has a system call and a wake-up of its own, unless a frame takes it along. The
    // writer fills the other half of its slots meanwhile.
    const bool at_once = ++unreported_ == report_every_;
    if (at_once) unreported_ = 0;
    transport_.io_.release(id_, number, limits ? *limits : transport_.limits(), at_once);
  }
  void post_receive(std::uint32_t number, std::span<std::byte> to) override {
    transport_.io_.channels().post_receive(id_, number, to);
  }
  bool take_placed(std::uint32_t number) override {
    return transport_.io_.channels().take_placed(id_, number);
  }
  void withdraw() override { transport_.io_.channels().withdraw(id_); }

 private:
  const TcpTransport& transport_;
  const ChannelId id_;
  const std::uint32_t report_every_;  // of the releases
  std::uint32_t unreported_ = 0;
};

void TcpTransport::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

// Pages of a fresh mapping are zero and take no memory before a message touches them.
std::byte* TcpTransport::allocate_copy(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error("lockstep: no memory for messages of other hosts: " +
                std::string(std::strerror(errno)) + ".");
  std::lock_guard lock(mutex_);
  return copies_.emplace_back(static_cast<std::byte*>(memory), Unmap{bytes}).get();
}

std::unique_ptr<SendChannel> TcpTransport::open(const ChannelId& id, const SendRing& ring) {
  peers_.reach(id.process, limits());
  io_.channels().open(id, ring);
  return std::make_unique<Channel>(*this, id);
}

std::unique_ptr<ReceiveChannel> TcpTransport::open(const ChannelId& id, const ReceiveRing& ring) {
  peers_.reach(id.process, limits());
  io_.channels().open(id, ring);
  return std::make_unique<Channel>(*this, id, ring.count);
}

}  // namespace lockstep
