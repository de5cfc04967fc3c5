// How the payload of a large message is divided among the connections between two processes. One
// connection is encrypted by one thread and decrypted by one thread, and some networks limit the
// rate of each: several connections carry stripes of one message at the same time.
//
// The first connection carries the frame with the slot's header and stripe 0, connection i the
// stripe i. Both ends compute the same division from the number and the length of a message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace lockstep {

class Stripes {
 public:
  // As many stripes as the longest message can have.
  static constexpr std::uint32_t kMaxConnections = 8;
  // A shorter stripe costs more, by its frame, than it saves; the last stripe may be a little
  // shorter.
  static constexpr std::size_t kMinStripe = std::size_t{64} << 10;

  // The first messages of a channel come on one connection: they may arrive before the channel is
  // open there. Later ones are not sent before the first has been released.
  Stripes(std::uint32_t number, std::size_t bytes, std::uint32_t connections)
      : bytes_(bytes),
        stripe_(bytes),
        count_(number - kFirstNumber < kMaxSlots
                   ? 1
                   : std::clamp<std::size_t>(bytes / kMinStripe, 1, connections)) {
    if (count_ == 1) return;
    const std::size_t unit = count_ * kUnit;
    stripe_ = (bytes + unit - 1) / unit * kUnit;
    count_ = (bytes + stripe_ - 1) / stripe_;
  }

  std::size_t count() const { return count_; }
  std::size_t at(std::size_t i) const { return i * stripe_; }
  std::size_t size(std::size_t i) const { return std::min(stripe_, bytes_ - at(i)); }

 private:
  static constexpr std::size_t kUnit = 4096;

  std::size_t bytes_;
  std::size_t stripe_;
  std::size_t count_;
};

}  // namespace lockstep
