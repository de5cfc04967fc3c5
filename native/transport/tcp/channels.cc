#include "transport/tcp/channels.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

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
    take_whole(open, open.next, message);
    early_bytes_[channel.process] -= message.size() + kEntry;
  }
  early_.erase(early);
}

void Channels::open(const ChannelId& channel, const SendRing& send_ring) {
  std::lock_guard lock(mutex_);
  if (!send_rings_.emplace(channel, send_ring).second) throw Error(kTwice);
}

void Channels::check_room(const Open& open, std::uint32_t number, std::size_t payload) {
  const ReceiveRing& ring = open.receive_ring;
  if (static_cast<std::int32_t>(number - open.next) < 0) throw Error("a message out of turn");
  if (payload > ring.slot_bytes - kSlotHeader) throw Error("a message that is too long");
  if (!ring.read->reached(number + 1 - ring.count)) throw Error("a message without room");
}

// A message in one piece.
void Channels::take_whole(Open& open, std::uint32_t number, std::span<const std::byte> message) {
  if (number != open.headers || open.at(number).begun) throw Error("a message out of turn");
  check_room(open, number, message.size() - kSlotHeader);
  std::ranges::copy(message, open.slot(number));
  ++open.headers;
  advance(open);
}

void Channels::advance(Open& open) {
  Pending& pending = open.at(open.next++);
  pending = {.posted = pending.posted};
  open.receive_ring.written->advance();
  if (open.receive_ring.wake_up != nullptr) open.receive_ring.wake_up->advance();
}

void Channels::post_receive(const ChannelId& channel, std::uint32_t number,
                            std::span<std::byte> to) {
  std::lock_guard lock(mutex_);
  Open& open = receive_rings_.at(channel);
  const bool is_ahead = number - open.next < kMaxSlots && !open.at(number).begun;
  if (is_ahead) open.at(number).posted = {Posted::kWaits, number, to};
}

bool Channels::take_placed(const ChannelId& channel, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  Posted& posted = receive_rings_.at(channel).at(number).posted;
  if (posted.number != number) return false;
  return std::exchange(posted, {}).state == Posted::kFilled;
}

void Channels::withdraw(const ChannelId& channel) {
  std::unique_lock lock(mutex_);
  Open& open = receive_rings_.at(channel);
  // What comes from now on goes into the slot.
  for (Pending& pending : open.pending) pending.posted = {};
  filled_.wait(lock, [&] { return open.fillings == 0; });
}

void Channels::Filling::end() {
  Channels* const channels = std::exchange(channels_, nullptr);
  if (channels == nullptr) return;
  std::lock_guard lock(channels->mutex_);
  if (--open_->fillings == 0) channels->filled_.notify_all();
}

Channels::Room Channels::room(const Part& part, std::size_t bytes) {
  if (part.payload > kMaxMessage - kSlotHeader) throw Error("a message that is too long");
  const Stripes stripes(part.number, part.payload, connections_);
  const std::size_t header = part.stripe == 0 ? kSlotHeader : 0;
  if (part.stripe >= stripes.count() || bytes != header + stripes.size(part.stripe))
    throw Error("a message of another length than it says");
  std::lock_guard lock(mutex_);
  const auto found = receive_rings_.find(part.channel);
  if (found == receive_rings_.end()) {
    if (stripes.count() > 1) throw Error("a message out of turn");
    return {};
  }
  Open& open = found->second;
  if (part.stripe == 0 && part.number != open.headers) throw Error("a message out of turn");
  check_room(open, part.number, part.payload);
  Pending& pending = open.at(part.number);
  if (!begin(pending, part)) throw Error("a message of another length than it says");
  if (part.stripe == 0) ++open.headers;
  std::byte* const slot = open.slot(part.number);
  const bool posted = pending.posted.state == Posted::kFills;
  std::byte* const rest = posted ? pending.posted.to.data() : slot + kSlotHeader;
  return {slot, rest + stripes.at(part.stripe), posted};
}

// All stripes of a message go to the same place. False for a stripe that has begun already, and for
// one of a message that has another length.
bool Channels::begin(Pending& pending, const Part& part) {
  Posted& posted = pending.posted;
  if (!std::exchange(pending.begun, true)) {
    pending.payload = part.payload;
    const bool fits = posted.state == Posted::kWaits && posted.number == part.number &&
                      posted.to.size() == part.payload;
    if (fits) posted.state = Posted::kFills;
  }
  const std::uint32_t bit = 1u << part.stripe;
  const bool is_new = (pending.rooms & bit) == 0;
  pending.rooms |= bit;
  return is_new && pending.payload == part.payload;
}

std::byte* Channels::posted_room(const Part& part, Filling& filling) {
  std::lock_guard lock(mutex_);
  Open& open = receive_rings_.at(part.channel);
  const Posted& posted = open.at(part.number).posted;
  const std::size_t at = Stripes(part.number, part.payload, connections_).at(part.stripe);
  // Withdrawn: what comes is of no use.
  if (posted.state != Posted::kFills) return open.slot(part.number) + kSlotHeader + at;
  ++open.fillings;
  filling.channels_ = this;
  filling.open_ = &open;
  return posted.to.data() + at;
}

void Channels::arrived(const Part& part) {
  std::lock_guard lock(mutex_);
  Open& open = receive_rings_.at(part.channel);
  ++open.at(part.number).arrived;
  for (;;) {
    Pending& next = open.at(open.next);
    if (!next.begun) return;
    if (next.arrived != Stripes(open.next, next.payload, connections_).count()) return;
    if (next.posted.state == Posted::kFills) next.posted.state = Posted::kFilled;
    advance(open);
  }
}

void Channels::keep(const ChannelId& channel, std::uint32_t number,
                    std::vector<std::byte> message) {
  std::lock_guard lock(mutex_);
  const auto found = receive_rings_.find(channel);
  if (found != receive_rings_.end())  // opened while the message came in
    return take_whole(found->second, number, message);
  auto& early = early_[channel];
  if (number - kFirstNumber != early.size()) throw Error("a message out of turn");
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
