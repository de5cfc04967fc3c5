#include "transport/tcp/channels.h"

#include <cstring>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

// Of one stream before it is open: as many as a ring has slots.
constexpr std::size_t kMostEarly = 4;
// What keeping one takes besides its bytes.
constexpr std::size_t kEntry = 512;
// Groups are told apart by a hash of 64 bits.
constexpr const char* kTwice = "lockstep: two groups of devices go by the same number.";

}  // namespace

void Streams::open(const Stream& stream, const Inlet& inlet) {
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = inlets_.emplace(stream, Open{inlet});
  if (!is_new) throw Error(kTwice);
  Open& open = at->second;
  const auto early = early_.find(stream);
  if (early == early_.end()) return;
  for (const auto& message : early->second) {
    std::memcpy(slot(open, open.next, message.size()), message.data(), message.size());
    advance(open);
    early_bytes_[stream.process] -= message.size() + kEntry;
  }
  early_.erase(early);
}

void Streams::open(const Stream& stream, const Outlet& outlet) {
  std::lock_guard lock(mutex_);
  if (!outlets_.emplace(stream, outlet).second) throw Error(kTwice);
}

std::byte* Streams::slot(const Open& open, std::uint32_t number, std::size_t bytes) const {
  const Inlet& inlet = open.inlet;
  if (number != open.next) throw Error("a message out of turn");
  if (bytes > inlet.slot_bytes) throw Error("a message that is too long");
  if (!inlet.read->reached(number + 1 - inlet.count)) throw Error("a message without room");
  return inlet.slots + number % inlet.count * inlet.slot_bytes;
}

void Streams::advance(Open& open) {
  ++open.next;
  open.inlet.written->advance();
  if (open.inlet.bell != nullptr) open.inlet.bell->advance();
}

std::byte* Streams::room(const Stream& stream, std::uint32_t number, std::size_t bytes) {
  if (bytes > kLargestMessage) throw Error("a message that is too long");
  std::lock_guard lock(mutex_);
  const auto found = inlets_.find(stream);
  return found == inlets_.end() ? nullptr : slot(found->second, number, bytes);
}

void Streams::arrived(const Stream& stream) {
  std::lock_guard lock(mutex_);
  advance(inlets_.at(stream));
}

void Streams::keep(const Stream& stream, std::uint32_t number, std::vector<std::byte> message) {
  std::lock_guard lock(mutex_);
  const auto found = inlets_.find(stream);
  if (found != inlets_.end()) {  // opened while the message came in
    std::memcpy(slot(found->second, number, message.size()), message.data(), message.size());
    advance(found->second);
    return;
  }
  auto& early = early_[stream];
  if (number != early.size()) throw Error("a message out of turn");
  if (early.size() == kMostEarly) throw Error("more messages than there is room for");
  std::size_t& bytes = early_bytes_[stream.process];
  if (message.size() + kEntry > kMostEarlyBytes - bytes)
    throw Error("more messages than there is room for, of groups that are not known here yet");
  bytes += message.size() + kEntry;
  early.push_back(std::move(message));
}

void Streams::released(const Stream& stream, std::uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = outlets_.find(stream);
  if (found == outlets_.end() || found->second.read->load() != number)
    throw Error("word of a message that was not sent");
  found->second.read->advance();
  if (found->second.bell != nullptr) found->second.bell->advance();
}

}  // namespace lockstep
