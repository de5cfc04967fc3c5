// Where messages of other hosts go: the rings that are open here, by channel. See endpoint.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace lockstep {

class Channels {
 public:
  static constexpr std::size_t kMaxMessage = kSlotHeader + (512 << 10);
  // Limit for the messages of one process that came before their channels were opened here. A
  // process that keeps to the protocol is ahead by a few messages in each of its collectives, some
  // MiB in all.
  static constexpr std::size_t kMaxEarlyBytes = std::size_t{128} << 20;

  // Called before the first message is sent or expected. What the rings point to stays valid.
  void open(const ChannelId& channel, const ReceiveRing& receive_ring);
  void open(const ChannelId& channel, const SendRing& send_ring);

  // See ReceiveChannel.
  void post_receive(const ChannelId& channel, std::uint32_t number, std::span<std::byte> to);
  bool take_placed(const ChannelId& channel, std::uint32_t number);
  void withdraw(const ChannelId& channel);

  // For the progress thread. Messages of a channel come in order, and none before its slot has been
  // released; a peer that breaks these rules makes these throw Error. `room` is where the bytes of
  // a message go: the slot, or its header there and the rest into memory that was posted. It is
  // null while the channel is not open here: `keep` then stores the message.
  struct Room {
    std::byte* header = nullptr;
    std::byte* rest = nullptr;
    bool posted = false;
  };
  Room room(const ChannelId& channel, std::uint32_t number, std::size_t bytes);
  // Where the rest of a message goes whose room was posted. `lock` keeps `withdraw` waiting while
  // it is held: so long the memory stays.
  std::byte* posted_room(const ChannelId& channel, std::unique_lock<std::mutex>& lock);
  void arrived(const ChannelId& channel);
  void keep(const ChannelId& channel, std::uint32_t number, std::vector<std::byte> message);
  void released(const ChannelId& channel, std::uint32_t number);

 private:
  struct Posted {
    enum { kNone, kWaits, kFills, kFilled } state = kNone;
    std::uint32_t number = 0;
    std::span<std::byte> to;
  };
  struct Open {
    ReceiveRing receive_ring;
    std::uint32_t next = 0;
    std::uint32_t begun = 0;  // messages whose room is known: `next`, or one more
    std::array<Posted, kMaxSlots> posted{};
    Posted& at(std::uint32_t number) { return posted[number % kMaxSlots]; }
  };
  std::byte* slot(const Open& open, std::uint32_t number, std::size_t bytes) const;
  static void advance(Open& open);

  std::mutex posted_in_use_;  // held while bytes go into posted memory; taken before `mutex_`
  std::mutex mutex_;
  std::map<ChannelId, Open> receive_rings_;
  std::map<ChannelId, SendRing> send_rings_;
  std::map<ChannelId, std::deque<std::vector<std::byte>>> early_;
  std::map<int, std::size_t> early_bytes_;  // by process
};

}  // namespace lockstep
