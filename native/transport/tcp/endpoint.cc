#include "transport/tcp/endpoint.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "core/error.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/tls.h"

namespace lockstep {
namespace {

// How long one write waits before it checks the job again.
constexpr std::chrono::milliseconds kPollInterval{50};
constexpr std::chrono::microseconds kRetryInterval{20};

using Result = Session::Result;

Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::vector<bool> remote_flags(const std::vector<std::string>& addresses) {
  std::vector<bool> found;
  for (const std::string& address : addresses) found.push_back(!address.empty());
  return found;
}

// The one place that chooses how connections are secured.
std::unique_ptr<const Security> security_of(const EndpointOptions& options) {
  if (options.encrypt) return std::make_unique<Tls>(options.tls_library, options.key);
  return std::make_unique<TlsGreetingOnly>(options.tls_library, options.key);
}

std::uint32_t connections_of(const EndpointOptions& options) {
  if (options.companion != nullptr) return 1;
  return std::clamp(static_cast<std::uint32_t>(options.connections), 1u, Stripes::kMaxConnections);
}

// The same at both ends of each pair.
std::vector<bool> deferred_of(const EndpointOptions& options, int process) {
  if (options.hosts.empty()) return {};
  std::vector<bool> deferred = deferred_connections(options.hosts, options.num_agents, process);
  for (std::size_t i = 0; i < deferred.size(); ++i)
    deferred[i] = deferred[i] && !options.addresses[i].empty();
  return deferred;
}

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

// When the process exits, OpenSSL's own handler frees what sessions use. It was added when OpenSSL
// was opened, so this one, which is added later, runs before it.
struct Endpoint::Open {
  std::mutex mutex;
  std::set<Endpoint*> all;

  static Open& instance() {
    static auto* open = [] {
      std::atexit([] { instance().stop_all(); });
      return new Open;
    }();
    return *open;
  }
  void stop_all() {
    std::lock_guard lock(mutex);
    for (Endpoint* endpoint : all) endpoint->stop();
  }
  void add(Endpoint* endpoint) {
    std::lock_guard lock(mutex);
    all.insert(endpoint);
  }
  void remove(Endpoint* endpoint) {
    std::lock_guard lock(mutex);
    all.erase(endpoint);
  }
};

Endpoint::Endpoint(const EndpointOptions& options, int process, std::uint64_t nonce,
                   const std::vector<std::string>& labels, std::shared_ptr<Arena> arena)
    : process_(process),
      nonce_(nonce),
      labels_(labels),
      arena_(std::move(arena)),
      security_(security_of(options)),
      key_is_drawn_(options.key_is_drawn),
      channels_(connections_of(options)),
      companion_(options.companion),
      companion_greeting_(companion_ == nullptr ? std::vector<std::byte>()
                                                : companion_->greeting()),
      num_deferred_(add_peers(options)),
      progress_(options.listener, options.pids, remote_flags(options.addresses), process, nonce,
                labels, *security_, channels_, *arena_, options.num_agents,
                options.greeting_timeout, companion_,
                {deferred_of(options, process),
                 [this](int other) { want(other, BackgroundThreads::kProgram); },
                 [this] { relay_abort(); }}),
      senders_(channels_.connections() - 1) {
  try {
    start(options);
  } catch (...) {
    if (arena_->aborted()) tell_abort();
    stop_connecting();  // the threads use what would be destroyed before them
    throw;
  }
}

void Endpoint::start(const EndpointOptions& options) {
  meet(false, after(options.connect_timeout_seconds));
  meet(true, after(options.agent_connect_timeout_seconds));
  progress_.set_started();
  if (defers_)
    background_.start();
  else
    progress_.close_when_met();
  Open::instance().add(this);
  if (progress_.is_agent(process_)) return;  // the others receive what it receives
  abort_listener_ = arena_->add_abort_listener([this](std::string_view text) {
    has_told_abort_ = true;
    broadcast(Frame::kAbort, std::as_bytes(std::span(text)));
  });
}

int Endpoint::add_peers(const EndpointOptions& options) {
  const std::vector<bool> deferred = deferred_of(options, process_);
  for (std::size_t i = 0; i < options.addresses.size(); ++i)
    peers_.emplace_back(options.addresses[i], i < deferred.size() && deferred[i]);
  return static_cast<int>(std::ranges::count(deferred, true));
}

// The thread that holds the lock may be stuck until a deadline of its own.
bool Endpoint::lock(std::unique_lock<std::mutex>& send_lock, const Deadline& deadline) {
  while (!send_lock.try_lock()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kRetryInterval);
  }
  return true;
}

Endpoint::~Endpoint() {
  Open::instance().remove(this);
  if (abort_listener_ != 0) arena_->remove_abort_listener(abort_listener_);
  end_control();
  leave();
  stop_connecting();
  stopped_.store(1);
  if (companion_ != nullptr) companion_->stop();
}

void Endpoint::send(const ChannelId& channel, std::uint32_t number, const Message& message,
                    const WaitLimits& limits) {
  const Frame frame{
      .kind = Frame::kMessage, .index = channel.ring, .clique = channel.clique, .number = number};
  Connection* const connection = peer_of(channel.process).connection.load();
  if (connection == nullptr) return;  // it had left when this channel was opened
  const Stripes stripes(number, message.rest.size(), connections_to(channel.process));
  const WriteResult how = stripes.count() == 1
                              ? try_frame(*connection, frame, message.header, message.rest, limits)
                              : try_stripes(*connection, frame, message, stripes, limits);
  if (how != WriteResult::kAll) give_up(channel.process, how, limits);
}

// All at the same time. One that cannot be sent ends the message: those that have not begun are
// left out.
Endpoint::WriteResult Endpoint::try_stripes(Connection& first, const Frame& frame,
                                            const Message& message, const Stripes& stripes,
                                            const WaitLimits& limits) {
  if (is_forked()) throw Error("lockstep: a forked child has no connections of its own.");
  std::atomic<WriteResult> worst{WriteResult::kAll};
  std::atomic<bool> lacks_memory{false};
  senders_.run(static_cast<std::uint32_t>(stripes.count()), [&](std::uint32_t i) {
    if (worst.load() != WriteResult::kAll) return;
    const auto part = message.rest.subspan(stripes.at(i), stripes.size(i));
    const std::span<const std::byte> header = message.header;
    Connection& connection = i == 0 ? first : *first.further[i - 1];
    Frame own = frame;
    own.extra = static_cast<std::uint32_t>(message.rest.size() - part.size());
    WriteResult how = WriteResult::kBroken;
    try {
      how = try_frame(connection, own, i == 0 ? header : header.first(0), part, limits);
    } catch (const std::bad_alloc&) {
      lacks_memory = true;
    }
    if (how != WriteResult::kAll) worst = how;
  });
  if (lacks_memory) throw std::bad_alloc();
  return worst;
}

void Endpoint::release(const ChannelId& channel, std::uint32_t number, const WaitLimits& limits,
                       bool at_once) {
  const Frame frame{
      .kind = Frame::kRelease, .index = channel.ring, .clique = channel.clique, .number = number};
  Connection* const connection = peer_of(channel.process).connection.load();
  if (connection == nullptr) return;
  {
    std::lock_guard lock(connection->release_lock);
    append(connection->releases, std::as_bytes(std::span(&frame, 1)));
    if (!at_once) return;
    connection->urgent = true;
  }
  send_urgent(channel.process, *connection, limits);
}

// While the send lock is held: want of memory may leave half a frame, here or in the socket.
class Endpoint::BreakOnException {
 public:
  explicit BreakOnException(Connection& connection) : connection_(connection) {}
  ~BreakOnException() {
    if (std::uncaught_exceptions() == before_) return;
    connection_.head.clear();
    break_connection(connection_);
    std::lock_guard lock(connection_.release_lock);
    connection_.sends_urgent = false;
  }
  BreakOnException(const BreakOnException&) = delete;
  BreakOnException& operator=(const BreakOnException&) = delete;

 private:
  Connection& connection_;
  const int before_ = std::uncaught_exceptions();
};

// A rank that has read does not wait for one that sends: on a slow link the latter has the lock
// most of the time, and the other host waits for the release.
void Endpoint::send_urgent(int process, Connection& connection, const WaitLimits& limits) {
  std::unique_lock send_lock(connection.send_lock, std::defer_lock);
  for (;;) {
    {
      std::lock_guard lock(connection.release_lock);
      if (!connection.urgent || connection.sends_urgent) return;
      if (send_lock.try_lock()) break;
    }
    if (limits.deadline.passed()) return give_up(process, WriteResult::kLate, limits);
    std::this_thread::sleep_for(kRetryInterval);
  }
  const BreakOnException guard(connection);
  const WriteResult before =
      connection.broken ? WriteResult::kBroken : write_unsent(connection, limits);
  const WriteResult how = end_frame(connection, send_lock, before, limits);
  if (how != WriteResult::kAll) give_up(process, how, limits);
}

void Endpoint::append_releases(Connection& connection) {
  std::lock_guard lock(connection.release_lock);
  append(connection.head, connection.releases);
  connection.releases.clear();
  connection.urgent = false;
  connection.sends_urgent = true;
}

// Gives up the send lock, once nothing is urgent. `how` the frame went out.
Endpoint::WriteResult Endpoint::end_frame(Connection& connection,
                                          std::unique_lock<std::mutex>& send_lock, WriteResult how,
                                          const WaitLimits& limits) {
  for (;;) {
    // Half a frame may have gone out: nothing can follow it.
    if (how != WriteResult::kAll) break_connection(connection);
    {
      std::lock_guard lock(connection.release_lock);
      if (connection.broken || !connection.urgent) {
        connection.sends_urgent = false;
        send_lock.unlock();
        return how;
      }
    }
    append_releases(connection);
    how = write(connection, connection.head, {}, limits).how;
    connection.head.clear();
  }
}

Endpoint::WriteResult Endpoint::try_frame(Connection& connection, Frame frame,
                                          std::span<const std::byte> header,
                                          std::span<const std::byte> rest,
                                          const WaitLimits& limits) {
  frame.bytes = static_cast<std::uint32_t>(header.size() + rest.size());
  std::unique_lock send_lock(connection.send_lock, std::defer_lock);
  if (!lock(send_lock, limits.deadline)) return WriteResult::kLate;
  if (connection.broken) return WriteResult::kBroken;
  const BreakOnException guard(connection);
  WriteResult how = write_unsent(connection, limits);
  if (how == WriteResult::kAll) {
    append_releases(connection);
    append(connection.head, std::as_bytes(std::span(&frame, 1)));
    append(connection.head, header);
    how = write(connection, connection.head, rest, limits).how;
    connection.head.clear();
  }
  return end_frame(connection, send_lock, how, limits);
}

void Endpoint::break_connection(Connection& connection) {
  connection.broken = true;
  shutdown(connection.fd.get(), SHUT_RDWR);
}

Endpoint::Written Endpoint::write(Connection& connection, std::span<const std::byte> head,
                                  std::span<const std::byte> body, const WaitLimits& limits) {
  const auto start = Clock::now();
  auto cut = Clock::time_point::max();
  std::size_t written = 0;
  const std::size_t all = head.size() + body.size();
  while (written < all) {
    std::size_t moved = 0;
    const Result result = connection.session->write(head, body, moved);
    written += moved;
    const std::size_t of_head = std::min(moved, head.size());
    head = head.subspan(of_head);
    body = body.subspan(moved - of_head);
    if (result == Result::kDone) continue;
    if (result != Result::kWantsRead && result != Result::kWantsWrite)
      return {WriteResult::kBroken, written};
    const auto now = Clock::now();
    if (limits.abort->load(std::memory_order_acquire) != 0) cut = std::min(cut, now + kSendGrace);
    if (limits.deadline.passed() || now >= cut) return {WriteResult::kLate, written};
    if (limits.stop != nullptr && limits.stop->load() != 0) return {WriteResult::kLate, written};
    if (limits.wake_up != nullptr && now >= start + kLongWait) limits.wake_up->notify();
    wait_for(connection.fd.get(), result == Result::kWantsWrite, now + kPollInterval);
  }
  return {WriteResult::kAll, written};
}

// Returns if the process has left: it needs nothing any more. The frame that says so, or why it has
// ended, comes by the other direction, perhaps a moment later.
void Endpoint::give_up(int process, WriteResult how, const WaitLimits& limits) {
  const std::string& peer = labels_[static_cast<std::size_t>(process)];
  if (how == WriteResult::kBroken && wait_for_reason(process, limits)) return;
  if (arena_->aborted()) throw Error(arena_->abort_text());
  if (how == WriteResult::kLate)
    throw Error("lockstep: " + peer + " has not taken all of what " +
                labels_[static_cast<std::size_t>(process_)] +
                " sent until the deadline. --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) "
                "sets the limit; 0 means none.");
  throw Error("lockstep: the connection to " + peer + " is broken: it has ended, or its host " +
              "cannot be reached.");
}

// Whether that process has left. Waits until that or the reason of an abort is known, for a moment.
bool Endpoint::wait_for_reason(int process, const WaitLimits& limits) {
  const bool watched = progress_.deferred_abort().is_watched();
  const auto end =
      Clock::now() + kSendGrace + (watched ? DeferredAbort::kGrace : Clock::duration(0));
  while (Clock::now() < end) {
    if (has_left(process).load(std::memory_order_acquire) != 0) return true;
    if (limits.abort->load(std::memory_order_acquire) != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace lockstep
