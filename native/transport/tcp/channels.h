// The rings that are open here, by channel: messages of other hosts go into them.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "transport/tcp/stripes.h"
#include "transport/transport.h"

namespace lockstep {

class Channels {
  struct Open;

 public:
  static constexpr std::size_t kMaxMessage = kSlotHeader + (512 << 10);
  static_assert(Stripes::kMaxConnections * Stripes::kMinStripe <= kMaxMessage - kSlotHeader);
  // Limit for the messages of one process that came before their channels were opened here. A
  // process that keeps to the protocol is ahead by a few messages in each of its collectives, some
  // MiB in all.
  static constexpr std::size_t kMaxEarlyBytes = std::size_t{128} << 20;

  // `connections`: of each process of another host, for what it sends to this one.
  explicit Channels(std::uint32_t connections = 1) : connections_(connections) {}
  std::uint32_t connections() const { return connections_; }

  // Called before the first message is sent or expected. What the rings point to stays valid.
  void open(const ChannelId& channel, const ReceiveRing& receive_ring);
  void open(const ChannelId& channel, const SendRing& send_ring);

  // See ReceiveChannel.
  void post_receive(const ChannelId& channel, std::uint32_t number, std::span<std::byte> to);
  bool take_placed(const ChannelId& channel, std::uint32_t number);
  void withdraw(const ChannelId& channel);

  // The threads that receive use these. On one connection the messages of a channel come in order,
  // and none before its slot has been released; a peer that breaks these rules makes these throw
  // Error. A message is there once its stripes are, of all connections, and those before it.
  struct Part {
    ChannelId channel;
    std::uint32_t number;  // of the message
    std::uint32_t stripe;  // which one of it
    std::size_t payload;   // bytes, in all stripes
  };
  // The place for the bytes of a part: the slot, or its header there and the rest into memory that
  // was posted. Null while the channel is not open here: `keep` then stores the message.
  struct Room {
    std::byte* header = nullptr;  // of stripe 0
    std::byte* rest = nullptr;
    bool posted = false;
  };
  Room room(const Part& part, std::size_t bytes);
  // Keeps `withdraw` waiting while it lives: bytes go into posted memory. It never lives for longer
  // than one read that does not wait, so `withdraw` has no deadline.
  class Filling {
   public:
    Filling() = default;
    ~Filling() { end(); }
    Filling(const Filling&) = delete;
    Filling& operator=(const Filling&) = delete;
    void end();

   private:
    friend Channels;
    Channels* channels_ = nullptr;  // null: it keeps nothing waiting
    Open* open_ = nullptr;
  };
  // The place for the rest of a part whose room was posted. `filling` is fresh.
  std::byte* posted_room(const Part& part, Filling& filling);
  void arrived(const Part& part);
  void keep(const ChannelId& channel, std::uint32_t number, std::vector<std::byte> message);
  void released(const ChannelId& channel, std::uint32_t number);

 private:
  struct Posted {
    enum { kNone, kWaits, kFills, kFilled } state = kNone;
    std::uint32_t number = 0;
    std::span<std::byte> to;
  };
  // A message of which something has come, or may come.
  struct Pending {
    Posted posted;
    bool begun = false;       // its room is known, and `payload`
    std::size_t payload = 0;  // bytes, in all stripes
    std::uint32_t rooms = 0;  // a bit for each stripe that has begun
    std::size_t arrived = 0;  // stripes
  };
  struct Open {
    ReceiveRing receive_ring;
    std::uint32_t next = kFirstNumber;     // the first message that is not there
    std::uint32_t headers = kFirstNumber;  // the first message whose stripe 0 has not begun
    int fillings = 0;                      // reads into posted memory
    std::array<Pending, kMaxSlots> pending{};
    Pending& at(std::uint32_t number) { return pending[number % kMaxSlots]; }
    std::byte* slot(std::uint32_t number) const {
      return receive_ring.slots + number % receive_ring.count * receive_ring.slot_bytes;
    }
  };
  static void check_room(const Open& open, std::uint32_t number, std::size_t payload);
  static bool begin(Pending& pending, const Part& part);
  static void take_whole(Open& open, std::uint32_t number, std::span<const std::byte> message);
  static void advance(Open& open);

  const std::uint32_t connections_;
  std::mutex mutex_;
  std::condition_variable filled_;  // no read into posted memory of a channel is left
  std::map<ChannelId, Open> receive_rings_;
  std::map<ChannelId, SendRing> send_rings_;
  std::map<ChannelId, std::deque<std::vector<std::byte>>> early_;
  std::map<int, std::size_t> early_bytes_;  // by process
};

}  // namespace lockstep
