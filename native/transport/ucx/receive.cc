// What comes over UCX. A peer proves with the receiver's secret that it belongs to the job, and no
// number that comes is trusted. All of this is called by UCX, under the worker's lock.
#include <cstring>
#include <utility>

#include "base/error.h"
#include "transport/ucx/ucx_transport.h"

namespace lockstep {
// A message whose bytes UCX fetches.
struct UcxTransport::Incoming {
  UcxTransport* owner;
  ChannelId channel;
  std::uint32_t number;
  std::vector<std::byte> early;  // where they go while the channel is not open here
};

ucp::Status UcxTransport::on_message(void* argument, const void* header, std::size_t header_bytes,
                                     void* data, std::size_t bytes,
                                     const ucp::ReceiveParam* param) {
  const bool is_rendezvous = (param->attributes & ucp::ReceiveParam::kRendezvous) != 0;
  return static_cast<UcxTransport*>(argument)->take(static_cast<const std::byte*>(header),
                                                    header_bytes, data, bytes, is_rendezvous);
}

ucp::Status UcxTransport::take(const std::byte* bytes, std::size_t header_bytes, void* data,
                               std::size_t data_bytes, bool is_rendezvous) {
  Header header{};
  if (header_bytes >= sizeof(Header)) std::memcpy(&header, bytes, sizeof(Header));
  if (header.secret != secret_ || header.process >= peers_.size() ||
      peers_[header.process].address.empty()) {
    refusals_.add("dropped a message over UCX", "it comes from no process of the job");
    return ucp::kOk;
  }
  Peer& from = peers_[header.process];
  try {
    if (header.kind == kMessage) {
      if (header_bytes != sizeof(Header) + kSlotHeader || header.bytes != data_bytes)
        throw Error("a message whose length is wrong");
      return take_message(from, header, bytes + sizeof(Header), data, is_rendezvous);
    }
    if (header.kind == kRelease) {
      channels_.released({header.clique, header.ring, from.process}, header.number);
      count(from);
    } else if (header.kind == kAllReceived) {
      from.has_all = true;
    } else {
      throw Error("a message of a kind that is not known");
    }
  } catch (const std::exception& error) {
    fail(from, error);
  }
  return ucp::kOk;
}

// The progress thread then fails the job.
void UcxTransport::fail(const Peer& from, const std::exception& error) {
  if (failure_.empty())
    failure_ = "lockstep: " + label(process_) + " received from " + label(from.process) +
               " over UCX " + error.what() + ".";
}

ucp::Status UcxTransport::take_message(Peer& from, const Header& header,
                                       const std::byte* slot_header, void* data,
                                       bool is_rendezvous) {
  const ChannelId channel{header.clique, header.ring, from.process};
  static_assert(sizeof(std::size_t) == 8);
  const std::size_t all = kSlotHeader + std::size_t{header.bytes};
  std::byte* to = channels_.room(channel, header.number, all);
  auto incoming = std::make_unique<Incoming>(Incoming{this, channel, header.number, {}});
  if (to == nullptr) {
    incoming->early.resize(all);
    to = incoming->early.data();
  }
  std::memcpy(to, slot_header, kSlotHeader);
  to += kSlotHeader;
  if (is_rendezvous) return fetch(std::move(incoming), data, to, header.bytes);
  if (header.bytes != 0) std::memcpy(to, data, header.bytes);
  finish(*incoming);
  return ucp::kOk;
}

ucp::Status UcxTransport::fetch(std::unique_ptr<Incoming> incoming, void* data, std::byte* to,
                                std::size_t bytes) {
  ucp::RequestParam param{};
  param.op_attr_mask = ucp::RequestParam::kCallback | ucp::RequestParam::kUserData;
  param.callback.received = on_fetched;
  param.user_data = incoming.get();
  const ucp::StatusPointer request = library_.receive(worker_.get(), data, to, bytes, &param);
  if (request == nullptr)
    finish(*incoming);
  else if (ucp::is_error(request))
    break_off(peer(incoming->channel.process), ucp::error_of(request));
  else
    ++peer(incoming.release()->channel.process).unfetched;
  return ucp::kInProgress;
}

void UcxTransport::on_fetched(void* request, ucp::Status status, std::size_t, void* argument) {
  const std::unique_ptr<Incoming> incoming(static_cast<Incoming*>(argument));
  UcxTransport& self = *incoming->owner;
  self.library_.request_free(request);
  --self.peer(incoming->channel.process).unfetched;
  if (status != ucp::kOk) return self.break_off(self.peer(incoming->channel.process), status);
  try {
    self.finish(*incoming);
  } catch (const std::exception& error) {
    self.fail(self.peer(incoming->channel.process), error);
  }
}

void UcxTransport::finish(Incoming& incoming) {
  if (incoming.early.empty())
    channels_.arrived(incoming.channel, incoming.number);
  else
    channels_.keep(incoming.channel, incoming.number, std::move(incoming.early));
  count(peer(incoming.channel.process));
}

void UcxTransport::count(Peer& from) {
  ++from.received;
  see_whether_it_has_left(from);
}

void UcxTransport::see_whether_it_has_left(Peer& from) {
  if (!from.sent_in_all || from.received < *from.sent_in_all || from.left.load() != 0) return;
  from.left.store(1, std::memory_order_release);
  if (*from.sent_in_all == 0 || from.broken != ucp::kOk || stopped_) return;
  send(from, {.kind = kAllReceived, .process = static_cast<std::uint32_t>(process_)}, nullptr);
}

}  // namespace lockstep
