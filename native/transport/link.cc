#include "transport/link.h"

#include <array>
#include <cstring>

namespace lockstep {

Link::Link(Transport& transport, const ChannelId& id, std::size_t capacity)
    : capacity_(capacity),
      slots_(transport.allocate_copy(kDepth * (kSlotHeader + capacity))),
      to_peer_(transport.open(id, SendRing{&released_})),
      from_peer_(transport.open(
          id, ReceiveRing{slots_, kDepth, kSlotHeader + capacity, &written_, &read_})) {}

void Link::send(const Signature& signature, std::span<const std::byte> payload,
                const Watch& watch) {
  alignas(64) std::array<std::byte, kSlotHeader> header{};
  std::memcpy(header.data(), &signature, sizeof(signature));
  to_peer_->post_send(sent_++, {header, 0, payload}, &watch);
}

void Link::release(const Watch& watch) {
  const std::uint32_t number = next_++;
  read_.advance();
  from_peer_->post_release(number, &watch);
}

}  // namespace lockstep
