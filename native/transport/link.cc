#include "transport/link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace lockstep {

Link::Link(Transport& transport, const ChannelId& id, std::size_t capacity)
    : capacity_(capacity),
      slots_(transport.allocate_copy(kDepth * (kSlotHeader + capacity))),
      to_peer_(transport.open(id, SendRing{&released_})),
      from_peer_(transport.open(
          id, ReceiveRing{slots_, kDepth, kSlotHeader + capacity, &written_, &read_})) {}

void Link::send(const Signature& signature, std::span<const std::byte> payload,
                const WaitLimits& limits) {
  alignas(64) std::array<std::byte, kSlotHeader> header{};
  std::memcpy(header.data(), &signature, sizeof(signature));
  to_peer_->post_send(sent_++, {header, payload}, &limits);
}

bool Link::post_receive(std::span<std::byte> to) {
  if (static_cast<std::int32_t>(posted_ - next_) < 0) posted_ = next_;
  if (posted_ - next_ == kDepth) return false;
  if (!to.empty()) from_peer_->post_receive(posted_, to);
  wanted_[posted_++ % kDepth] = to.data();
  return true;
}

const std::byte* Link::payload() {
  std::byte* const wanted = std::exchange(wanted_[next_ % kDepth], nullptr);
  if (wanted != nullptr && from_peer_->take_placed(next_)) return wanted;
  return slot() + kSlotHeader;
}

void Link::withdraw() {
  if (std::ranges::all_of(wanted_, [](const std::byte* to) { return to == nullptr; })) return;
  from_peer_->withdraw();
  wanted_.fill(nullptr);
}

void Link::release(const WaitLimits& limits) {
  const std::uint32_t number = next_++;
  read_.advance();
  from_peer_->post_release(number, &limits);
}

}  // namespace lockstep
