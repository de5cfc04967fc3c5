#include "transport/tcp/channel_io.h"

#include <atomic>
#include <new>
#include <span>

#include "base/error.h"

namespace lockstep {

Connection::Result MessageSender::send(Connection& first, const ChannelId& channel,
                                       std::uint32_t number, const Message& message,
                                       const WaitLimits& limits) {
  const Frame frame{
      .kind = Frame::kMessage, .index = channel.ring, .clique = channel.clique, .number = number};
  const auto connections = static_cast<std::uint32_t>(1 + first.further.size());
  const Stripes stripes(number, message.rest.size(), connections);
  if (stripes.count() > 1) return send_stripes(first, frame, message, stripes, limits);
  return first.send(frame, message.header, message.rest, limits);
}

// A stripe that cannot be sent ends the message: those that have not begun are left out.
Connection::Result MessageSender::send_stripes(Connection& first, const Frame& frame,
                                               const Message& message, const Stripes& stripes,
                                               const WaitLimits& limits) {
  if (getpid() != owner_) throw Error("lockstep: a forked child has no connections of its own.");
  std::atomic<Connection::Result> worst{Connection::Result::kAll};
  std::atomic<bool> lacks_memory{false};
  threads_.run(static_cast<std::uint32_t>(stripes.count()), [&](std::uint32_t i) {
    if (worst.load() != Connection::Result::kAll) return;
    const auto part = message.rest.subspan(stripes.at(i), stripes.size(i));
    const std::span<const std::byte> header = message.header;
    Connection& connection = i == 0 ? first : *first.further[i - 1];
    Frame own = frame;
    own.extra = static_cast<std::uint32_t>(message.rest.size() - part.size());
    Connection::Result how = Connection::Result::kBroken;
    try {
      how = connection.send(own, i == 0 ? header : header.first(0), part, limits);
    } catch (const std::bad_alloc&) {
      lacks_memory = true;
    }
    if (how != Connection::Result::kAll) worst = how;
  });
  if (lacks_memory) throw std::bad_alloc();
  return worst;
}

Connection::Result MessageSender::release(Connection& first, const ChannelId& channel,
                                          std::uint32_t number, const WaitLimits& limits,
                                          bool at_once) {
  first.add_release(
      {.kind = Frame::kRelease, .index = channel.ring, .clique = channel.clique, .number = number},
      at_once);
  return at_once ? first.send_urgent(limits) : Connection::Result::kAll;
}

}  // namespace lockstep
