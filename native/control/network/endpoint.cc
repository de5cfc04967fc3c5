#include "control/network/endpoint.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "control/network/mesh.h"
#include "transport/tcp/tls.h"

namespace lockstep {
namespace {

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

// Chooses the connections that wait until they are needed: the same at both ends of each pair.
std::vector<bool> deferred_of(const EndpointOptions& options, int process) {
  if (options.hosts.empty()) return {};
  std::vector<bool> deferred = deferred_connections(options.hosts, options.num_agents, process);
  for (std::size_t i = 0; i < deferred.size(); ++i)
    deferred[i] = deferred[i] && !options.addresses[i].empty();
  return deferred;
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
      send_grace_(options.send_grace),
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
      sender_(channels_.connections() - 1) {
  try {
    start(options);
  } catch (...) {
    if (arena_->aborted()) report_abort();
    stop_connecting();  // the threads use what would be destroyed before them
    throw;
  }
}

void Endpoint::start(const EndpointOptions& options) {
  meet(false, after(options.connect_timeout_seconds));
  meet(true, after(options.agent_connect_timeout_seconds));
  progress_.set_started();
  background_.start();
  if (!defers_) progress_.close_when_met();
  Open::instance().add(this);
  if (progress_.is_agent(process_)) return;  // the others receive what it receives
  abort_listener_ = arena_->add_abort_listener([this](std::string_view) { report_abort(); });
}

int Endpoint::add_peers(const EndpointOptions& options) {
  const std::vector<bool> deferred = deferred_of(options, process_);
  for (std::size_t i = 0; i < options.addresses.size(); ++i)
    peers_.emplace_back(options.addresses[i], i < deferred.size() && deferred[i]);
  return static_cast<int>(std::ranges::count(deferred, true));
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
  Connection* const connection = peer_of(channel.process).connection.load();
  if (connection == nullptr) return;  // it had left when this channel was opened
  const Connection::Result how = sender_.send(*connection, channel, number, message, limits);
  if (how != Connection::Result::kAll) give_up(channel.process, how, limits);
}

void Endpoint::release(const ChannelId& channel, std::uint32_t number, const WaitLimits& limits,
                       bool at_once) {
  Connection* const connection = peer_of(channel.process).connection.load();
  if (connection == nullptr) return;
  const Connection::Result how =
      MessageSender::release(*connection, channel, number, limits, at_once);
  if (how != Connection::Result::kAll) give_up(channel.process, how, limits);
}

// Returns if the process has left: it needs nothing any more. The frame that says so, or why it has
// ended, comes by the other direction, perhaps a moment later.
void Endpoint::give_up(int process, Connection::Result how, const WaitLimits& limits) {
  const std::string& peer = label(process);
  if (how == Connection::Result::kBroken && wait_for_reason(process, limits)) return;
  if (arena_->aborted()) throw Error(arena_->abort_text());
  if (how == Connection::Result::kLate)
    throw Error("lockstep: " + peer + " has not taken all of what " + label(process_) +
                " sent until the deadline. --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) "
                "sets the limit; 0 means none.");
  throw Error("lockstep: the connection to " + peer + " is broken: it has ended, or its host " +
              "cannot be reached.");
}

// Whether that process has left. Waits until that or the reason of an abort is known, for a moment.
bool Endpoint::wait_for_reason(int process, const WaitLimits& limits) {
  const bool watched = progress_.deferred_abort().is_watched();
  const auto end =
      Clock::now() + send_grace_ + (watched ? DeferredAbort::kGrace : Clock::duration(0));
  while (Clock::now() < end) {
    if (has_left(process).load(std::memory_order_acquire) != 0) return true;
    if (limits.abort->load(std::memory_order_acquire) != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace lockstep
