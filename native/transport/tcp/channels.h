// Where messages of other hosts go: the rings that are open here, by channel. See endpoint.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
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

  // For the progress thread. Messages of a channel come in order, and none before its slot has been
  // released; a peer that breaks these rules makes these throw Error. `room` is where the bytes of
  // a message go. It is null while the channel is not open here: `keep` then stores the message.
  std::byte* room(const ChannelId& channel, std::uint32_t number, std::size_t bytes);
  void arrived(const ChannelId& channel);
  void keep(const ChannelId& channel, std::uint32_t number, std::vector<std::byte> message);
  void released(const ChannelId& channel, std::uint32_t number);

 private:
  struct Open {
    ReceiveRing receive_ring;
    std::uint32_t next = 0;
  };
  std::byte* slot(const Open& open, std::uint32_t number, std::size_t bytes) const;
  static void advance(Open& open);

  std::mutex mutex_;
  std::map<ChannelId, Open> receive_rings_;
  std::map<ChannelId, SendRing> send_rings_;
  std::map<ChannelId, std::deque<std::vector<std::byte>>> early_;
  std::map<int, std::size_t> early_bytes_;  // by process
};

}  // namespace lockstep
