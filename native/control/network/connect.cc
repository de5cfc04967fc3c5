// The connections that an endpoint opens: see endpoint.h.
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/signals.h"
#include "control/failure_detector.h"
#include "control/network/endpoint.h"
#include "transport/tcp/unencrypted.h"

namespace lockstep {
namespace {

// How long one wait lasts before it checks for an abort.
constexpr std::chrono::milliseconds kAbortCheckInterval{50};
constexpr std::size_t kConcurrentConnects = 16;
// Between two tries to connect.
constexpr std::chrono::milliseconds kFirstPause{10}, kMaxPause{500};

using Result = Session::Result;

// The other end closed the connection before it had accepted it.
class Dropped : public Error {
 public:
  using Error::Error;
};

// Calls step(i) for each i below `count` on a few threads. Throws what the first step to fail has
// thrown; no further step starts then.
template <typename Step>
void at_the_same_time(std::size_t count, const Step& step) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto some = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        step(i);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next.store(count);
      }
    }
  };
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < std::min(count, kConcurrentConnects))
      helpers.emplace_back([&some] {
        block_signals();
        some();
      });
  } catch (const std::system_error&) {  // too many threads: those that have started do it all
  }
  some();
  for (std::thread& helper : helpers) helper.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace

// Connects to several peers at the same time: a handshake is a few round trips of the network, one
// after the other.
void Endpoint::meet(bool agents, Clock::time_point end) {
  struct Way {
    int other;
    std::uint32_t which;
  };
  const Limit limit{end, [this] {
                      if (arena_->aborted()) throw Error(arena_->abort_text());
                    }};
  std::vector<Way> ways;
  const int count = static_cast<int>(peers_.size());
  for (int step = 1; step < count; ++step) {  // so that not all run to the same one
    const int other = (process_ + step) % count;
    const Peer& peer = peer_of(other);
    if (!peer.is_remote() || peer.is_deferred || progress_.is_agent(other) != agents) continue;
    for (std::uint32_t which = 0; which < connections_to(other); ++which)
      ways.push_back({other, which});
  }
  std::vector<std::unique_ptr<Connection>> made(ways.size());
  at_the_same_time(ways.size(), [&](std::size_t i) {
    const auto [other, which] = ways[i];
    try {
      made[i] = open(other, which, limit);
    } catch (const Error&) {
      if (!agents) throw;
    }
  });
  for (std::size_t i = 0; i < ways.size();) {
    auto first = std::move(made[i++]);
    for (; i < ways.size() && ways[i].which != 0; ++i) first->further.push_back(std::move(made[i]));
    if (first) publish(ways[i - 1].other, std::move(first));
  }
  agents ? progress_.wait_for_agents(end) : progress_.wait_for_processes(end);
  for (const Way& way : ways)
    if (Peer& peer = peer_of(way.other); peer.connection.load() != nullptr) peer.is_met = true;
}

// Agents send and receive no stripes.
std::uint32_t Endpoint::connections_to(int process) const {
  return progress_.is_agent(process) || progress_.is_agent(process_) ? 1 : channels_.connections();
}

// Shares a new connection, and sends the notices that the other processes have had before.
void Endpoint::publish(int process, std::unique_ptr<Connection> made) {
  Peer& peer = peer_of(process);
  peer.connection = made.release();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (stopped_.load() != 0) return peer.connection.load()->stop(Deadline(1));
  const auto notify = [&](std::uint32_t kind, std::string_view text) {
    std::vector<Connection::Notice> notices;
    add_notices(notices, process, kind);
    send_notices(std::move(notices), text);
  };
  if (arena_->aborted() && !progress_.is_agent(process_))
    notify(Frame::kAbort, arena_->abort_text());
  if (has_left_) notify(Frame::kLeave, {});
}

// Unauthenticated peers may push a connection out before it has shown that it has the key.
std::unique_ptr<Connection> Endpoint::open(int process, std::uint32_t which, const Limit& limit) {
  const std::string peer = label(process) + " at " + peer_of(process).address;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kMaxPause)) {
    try {
      auto made = try_to_connect(process, peer, limit);
      greet(*made, peer, process, which, limit);
      if (!security_->encrypts()) made->replace(std::make_unique<UnencryptedSession>(made->fd()));
      return made;
    } catch (const Dropped&) {
      limit.check();
      if (Clock::now() + pause >= limit.end) throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

std::string Endpoint::cannot_reach(const std::string& peer, const std::string& why) const {
  return "lockstep: " + label(process_) + " has no encrypted connection to " + peer + ": " + why +
         (key_is_drawn_ ? "." : ". LOCKSTEP_KEY_FILE has to hold the same key on all hosts.") +
         " The output of that process may tell more.";
}

// A handshake fails where the two ends have different keys, and where its messages are changed. The
// launcher has given the key that it has drawn to both ends.
std::string Endpoint::fails_handshake(const std::string& peer, const std::string& why) const {
  if (!key_is_drawn_)
    return cannot_reach(peer, why) +
           " If the keys are the same, the handshake was changed on its way.";
  return "lockstep: the handshake of " + label(process_) + " with " + peer +
         " was changed on its way. " + kTraffic + " No data was sent over this connection.";
}

std::unique_ptr<Connection> Endpoint::try_to_connect(int process, const std::string& peer,
                                                     const Limit& limit) {
  Descriptor fd;
  const auto text_of = [&](const Error& error) {
    return "lockstep: " + label(process_) + " cannot reach " + peer + ": " + error.what() +
           (peer_of(process).is_deferred
                ? ". It has ended, or a firewall lets no TCP through: its own output may tell."
                : ". Does a firewall let TCP through between the hosts?");
  };
  try {
    fd = connect_to(peer_of(process).address, limit.end, limit.check);
  } catch (const Refused& error) {
    throw Refused(text_of(error));
  } catch (const Error& error) {
    throw Error(text_of(error));
  }
  auto session = security_->open(fd.get(), Security::Side::kClient);
  for (Result result; (result = session->handshake()) != Result::kDone;) {
    if (result == Result::kClosed) throw Dropped(cannot_reach(peer, session->problem()));
    if (result == Result::kFailed)
      throw Error(session->was_changed() ? fails_handshake(peer, session->problem())
                                         : cannot_reach(peer, session->problem()));
    if (Clock::now() >= limit.end) throw Error(cannot_reach(peer, "no answer in time"));
    limit.check();
    wait_for(fd.get(), result == Result::kWantsWrite,
             std::min(limit.end, Clock::now() + kAbortCheckInterval));
  }
  return std::make_unique<Connection>(std::move(fd), std::move(session), send_grace_);
}

// Names this process, and returns when the other process has accepted it.
void Endpoint::greet(Connection& connection, const std::string& peer, int process,
                     std::uint32_t which, const Limit& limit) {
  const auto own = static_cast<std::uint32_t>(process_),
             other = static_cast<std::uint32_t>(process);
  const std::span<const std::byte> rest = progress_.is_agent(process) || which != 0
                                              ? std::span<const std::byte>()
                                              : companion_greeting_;
  const Frame greeting{.kind = Frame::kGreeting,
                       .index = own,
                       .clique = nonce_,
                       .number = Frame::kVersion |
                                 (security_->encrypts() ? 0 : Frame::kUnencrypted) |
                                 (has_left_ ? Frame::kHasLeft : 0),
                       .bytes = static_cast<std::uint32_t>(rest.size()),
                       .to = other,
                       .extra = Frame::connection_number(which, connections_to(process))};
  const auto bytes = std::as_bytes(std::span(&greeting, 1));
  const double left = std::chrono::duration<double>(limit.end - Clock::now()).count();
  const WaitLimits limits{&arena_->header().abort_state, Deadline(std::max(left, 1e-9)), {}};
  if (connection.write(bytes, rest, limits) != Connection::Result::kAll)
    throw Dropped(cannot_reach(peer, "it has closed the connection"));
  Frame answer;
  read_all(connection, peer, std::as_writable_bytes(std::span(&answer, 1)), limit);
  if (answer.kind == Frame::kRefusal && answer.bytes <= kAbortText) {
    std::string why(answer.bytes, ' ');
    read_all(connection, peer, std::as_writable_bytes(std::span(why)), limit);
    throw Denied("lockstep: " + peer + " has refused the connection of " + label(process_) + ": " +
                 why + ".");
  }
  if (answer.kind != Frame::kWelcome || answer.bytes != 0 || answer.index != other ||
      answer.to != own || answer.clique != nonce_)
    throw Error(cannot_reach(peer, "its answer is not that of the process that is looked for"));
  if ((answer.number & Frame::kHasLeft) != 0 && !progress_.is_agent(process))
    progress_.welcomed_after_end(process);
  if (answer.extra == machine_number() && answer.extra != 0) bound_send_buffer(connection.fd());
}

void Endpoint::read_all(Connection& connection, const std::string& peer, std::span<std::byte> to,
                        const Limit& limit) {
  while (!to.empty()) {
    std::size_t moved = 0;
    const Result result = connection.session().read(to, moved);
    to = to.subspan(moved);
    if (result == Result::kDone) continue;
    if (result == Result::kClosed || result == Result::kFailed)
      throw Dropped(cannot_reach(peer, connection.session().problem()));
    limit.check();
    if (Clock::now() >= limit.end) throw Error(cannot_reach(peer, "no answer in time"));
    wait_for(connection.fd(), result == Result::kWantsWrite,
             std::min(limit.end, Clock::now() + kAbortCheckInterval));
  }
}

}  // namespace lockstep
