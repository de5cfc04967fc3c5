#include "transport/tcp/channels.h"

#include <cstring>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

// What keeping one takes besides its bytes.
constexpr std::size_t kEntry = 512;
// Groups are told apart by a hash of 64 bits.
constexpr const char* kTwice = "lockstep: two groups of devices go by the same number.";

}  // namespace

void Channels::open(const ChannelId& channel, const ReceiveRing& receive_ring) {
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = receive_rings_.emplace(channel, Open{receive_ring});
  if (!is_new) throw Error(kTwice);
  Open& open = at->second;
  const auto early = early_.find(channel);
  if (early == early_.end()) return;
  for (const auto& message : early->second) {
    std::memcpy(slot(open, open.next, message.size()), message.data(), message.size());
    advance(open);
    early_bytes_[channel.process] -= message.size() + kEntry;
  }
  early_.erase(early);
}

void Channels::open(const ChannelId& channel, const SendRing& send_ring) {
  std::lock_guard lock(mutex_);
  if (!send_rings_.emplace(channel, send_ring).second) throw Error(kTwice);
}

std::byte* Channels::slot(const Open& open, std::uint32_t number, std::size_t bytes) const {
  const ReceiveRing& receive_ring = open.receive_ring;
  if (number != open.next) throw Error("a message out of turn");
  if (bytes > receive_ring.slot_bytes) throw Error("a message that is too long");
  if (!receive_ring.read->reached(number + 1 - receive_ring.count))
    throw Error("a message without room");
  return receive_ring.slots + number % receive_ring.count * receive_ring.slot_bytes;
}

void Channels::advance(Open& open) {
  open.begun = ++open.next;
  open.receive_ring.written->advance();
  if (open.receive_ring.wake_up != nullptr) open.receive_ring.wake_up->advance();
}

void Channels::post_receive(const ChannelId& channel, std::uint32_t number,
                            std::span<std::byte> to) {
  std::lock_guard lock(mutex_);
  Open& open = receive_rings_.at(channel);
  const bool is_ahead = static_cast<std::int32_t>(number - open.begun) >= 0;
  if (is_ahead) open.at(number) = {Posted::kWaits, number, to};
}

bool Channels::take_placed(const ChannelId& channel, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  Posted& posted = receive_rings_.at(channel).at(number);
  if (posted.number != number) return false;
  return std::exchange(posted, {}).state == Posted::kFilled;
}

void Channels::withdraw(const ChannelId& channel) {
  std::scoped_lock lock(posted_in_use_, mutex_);
  receive_rings_.at(channel).posted.fill({});
}

Channels::Room Channels::room(const ChannelId& channel, std::uint32_t number, std::size_t bytes) {
  if (bytes > kMaxMessage) throw Error("a message that is too long");
  std::lock_guard lock(mutex_);
  const auto found = receive_rings_.find(channel);
  if (found == receive_rings_.end()) return {};
  Open& open = found->second;
  std::byte* const header = slot(open, number, bytes);
  open.begun = number + 1;
  Posted& posted = open.at(number);
  const bool fits = posted.state == Posted::kWaits && posted.number == number &&
                    bytes == kSlotHeader + posted.to.size();
  if (!fits) return {header, header + kSlotHeader};
  posted.state = Posted::kFills;
  return {header, posted.to.data(), true};
}

std::byte* Channels::posted_room(const ChannelId& channel, std::unique_lock<std::mutex>& lock) {
  lock = std::unique_lock(posted_in_use_);
  std::lock_guard guard(mutex_);
  Open& open = receive_rings_.at(channel);
  const Posted& posted = open.at(open.next);
  if (posted.state == Posted::kFills) return posted.to.data();
  return open.receive_ring.slots +
         open.next % open.receive_ring.count * open.receive_ring.slot_bytes +
         kSlotHeader;  // withdrawn: what comes is of no use
}

void Channels::arrived(const ChannelId& channel) {
  std::lock_guard lock(mutex_);
  Open& open = receive_rings_.at(channel);
  Posted& posted = open.at(open.next);
  if (posted.state == Posted::kFills) posted.state = Posted::kFilled;
  advance(open);
}

void Channels::keep(const ChannelId& channel, std::uint32_t number,
                    std::vector<std::byte> message) {
  std::lock_guard lock(mutex_);
  const auto found = receive_rings_.find(channel);
  if (found != receive_rings_.end()) {  // opened while the message came in
    std::memcpy(slot(found->second, number, message.size()), message.data(), message.size());
    advance(found->second);
    return;
  }
  auto& early = early_[channel];
  if (number != early.size()) throw Error("a message out of turn");
  if (early.size() == kMaxSlots) throw Error("more messages than there is room for");
  std::size_t& bytes = early_bytes_[channel.process];
  if (message.size() + kEntry > kMaxEarlyBytes - bytes)
    throw Error("more messages than there is room for, of groups that are not known here yet");
  bytes += message.size() + kEntry;
  early.push_back(std::move(message));
}

void Channels::released(const ChannelId& channel, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = send_rings_.find(channel);
  if (found == send_rings_.end() || found->second.read->load() != number)
    throw Error("a release of a message that was not sent");
  found->second.read->advance();
  if (found->second.wake_up != nullptr) found->second.wake_up->advance();
}

}  // namespace lockstep
