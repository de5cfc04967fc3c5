// The rings that are open here, by channel: messages that come over UCX go into them.
//
// UCX keeps no order between a small message, which comes with its header, and a large one, whose
// bytes are fetched when its header is there. So each message goes into its slot when it comes, and
// is counted as written when all before it are there as well. A release stands for those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "transport/transport.h"

namespace lockstep {

class UcxChannels {
 public:
  static constexpr std::size_t kMaxMessage = kSlotHeader + (512 << 10);
  // Limit for the messages of one process that came before their channels were opened here.
  static constexpr std::size_t kMaxEarlyBytes = std::size_t{64} << 20;

  // Called before the first message is sent or expected. What the rings point to stays valid.
  void open(const ChannelId& channel, const ReceiveRing& receive_ring);
  void open(const ChannelId& channel, const SendRing& send_ring);

  // A peer that breaks the rules makes these throw Error. `room` is where a message of so many
  // bytes goes. It is null while the channel is not open here: `keep` then stores the message.
  std::byte* room(const ChannelId& channel, std::uint32_t number, std::size_t bytes);
  // Notes that the bytes of a message are there.
  void arrived(const ChannelId& channel, std::uint32_t number);
  void keep(const ChannelId& channel, std::uint32_t number, std::vector<std::byte> message);
  void released(const ChannelId& channel, std::uint32_t number);

 private:
  struct Open {
    ReceiveRing ring;
    std::uint32_t next = kFirstNumber;  // the first that is not there
    std::uint64_t expected = 0;         // bit i: message `next + i` has got its room
    std::uint64_t there = 0;            // bit i: and its bytes
  };
  static std::byte* slot(Open& open, std::uint32_t number, std::size_t bytes);
  static void advance(Open& open, std::uint32_t number);

  std::mutex mutex_;
  std::map<ChannelId, Open> receive_rings_;
  std::map<ChannelId, SendRing> send_rings_;
  std::map<ChannelId, std::map<std::uint32_t, std::vector<std::byte>>> early_;
  std::map<int, std::size_t> early_bytes_;  // by process
};

}  // namespace lockstep
