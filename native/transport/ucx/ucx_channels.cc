#include "transport/ucx/ucx_channels.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace lockstep {
namespace {

// The memory that an early message takes besides its bytes.
constexpr std::size_t kEntry = 512;
// Groups are told apart by a hash of 64 bits.
constexpr const char* kTwice = "lockstep: two groups of devices go by the same number.";

constexpr std::uint32_t kWindow = 64;  // bits of `expected`

}  // namespace

void UcxChannels::open(const ChannelId& channel, const ReceiveRing& receive_ring) {
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = receive_rings_.emplace(channel, Open{receive_ring});
  if (!is_new) throw Error(kTwice);
  const auto early = early_.find(channel);
  if (early == early_.end()) return;
  for (const auto& [number, message] : early->second) {
    std::memcpy(slot(at->second, number, message.size()), message.data(), message.size());
    advance(at->second, number);
    early_bytes_[channel.process] -= message.size() + kEntry;
  }
  early_.erase(early);
}

void UcxChannels::open(const ChannelId& channel, const SendRing& send_ring) {
  std::lock_guard lock(mutex_);
  if (!send_rings_.emplace(channel, send_ring).second) throw Error(kTwice);
}

std::byte* UcxChannels::slot(Open& open, std::uint32_t number, std::size_t bytes) {
  const ReceiveRing& ring = open.ring;
  const std::uint32_t ahead = number - open.next;
  if (ahead >= ring.count || ahead >= kWindow || (open.expected >> ahead & 1) != 0)
    throw Error("a message out of turn");
  if (bytes > ring.slot_bytes) throw Error("a message that is too long");
  if (!ring.read->reached(number + 1 - ring.count)) throw Error("a message without room");
  open.expected |= std::uint64_t{1} << ahead;
  return ring.slots + number % ring.count * ring.slot_bytes;
}

void UcxChannels::advance(Open& open, std::uint32_t number) {
  open.there |= std::uint64_t{1} << (number - open.next);
  while ((open.there & 1) != 0) {
    open.there >>= 1;
    open.expected >>= 1;
    ++open.next;
    open.ring.written->advance();
    if (open.ring.wake_up != nullptr) open.ring.wake_up->advance();
  }
}

std::byte* UcxChannels::room(const ChannelId& channel, std::uint32_t number, std::size_t bytes) {
  if (bytes > kMaxMessage) throw Error("a message that is too long");
  std::lock_guard lock(mutex_);
  const auto found = receive_rings_.find(channel);
  return found == receive_rings_.end() ? nullptr : slot(found->second, number, bytes);
}

void UcxChannels::arrived(const ChannelId& channel, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  advance(receive_rings_.at(channel), number);
}

void UcxChannels::keep(const ChannelId& channel, std::uint32_t number,
                       std::vector<std::byte> message) {
  std::lock_guard lock(mutex_);
  const auto found = receive_rings_.find(channel);
  if (found != receive_rings_.end()) {  // opened while the message came in
    std::memcpy(slot(found->second, number, message.size()), message.data(), message.size());
    advance(found->second, number);
    return;
  }
  if (number - kFirstNumber >= kMaxSlots) throw Error("more messages than there is room for");
  std::size_t& bytes = early_bytes_[channel.process];
  if (message.size() + kEntry > kMaxEarlyBytes - bytes)
    throw Error("more messages than there is room for, of groups that are not known here yet");
  const std::size_t taken = message.size() + kEntry;
  if (!early_[channel].emplace(number, std::move(message)).second)
    throw Error("a message out of turn");
  bytes += taken;
}

void UcxChannels::released(const ChannelId& channel, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = send_rings_.find(channel);
  if (found == send_rings_.end()) throw Error("a release of a message that was not sent");
  SendRing& ring = found->second;
  // An earlier release may come later: it has been counted with this one.
  while (!ring.read->reached(number + 1)) {
    if (number + 1 - ring.read->load() > kWindow)
      throw Error("a release of a message that was not sent");
    ring.read->advance();
    if (ring.wake_up != nullptr) ring.wake_up->advance();
  }
}

}  // namespace lockstep
