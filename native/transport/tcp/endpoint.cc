#include "transport/tcp/endpoint.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

// Of one TLS record: a frame and as much of what follows go out as one.
constexpr std::size_t kRecord = 16 << 10;
// How long one write waits before it looks at the job again.
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::microseconds kNextTry{20};
// When the job has failed, what is being sent may take this long to go out; then it is cut off.
constexpr std::chrono::milliseconds kLastWords{1000};

// Between two tries to connect.
constexpr std::chrono::milliseconds kFirstPause{10}, kLongestPause{500};

using Result = Tls::Result;

// The other end closed the connection before it had accepted it.
class Dropped : public Error {
 public:
  using Error::Error;
};

Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::vector<bool> elsewhere(const std::vector<std::string>& addresses) {
  std::vector<bool> found;
  for (const std::string& address : addresses) found.push_back(!address.empty());
  return found;
}

}  // namespace

// When the process exits, OpenSSL's own handler frees what sessions use. It was added when OpenSSL
// was opened, so this one, which is added later, runs before it.
struct Network::Living {
  std::mutex mutex;
  std::set<Network*> all;

  static Living& instance() {
    static auto* living = [] {
      std::atexit([] { instance().stop_all(); });
      return new Living;
    }();
    return *living;
  }
  void stop_all() {
    std::lock_guard lock(mutex);
    for (Network* network : all) network->stop();
  }
  void add(Network* network) {
    std::lock_guard lock(mutex);
    all.insert(network);
  }
  void remove(Network* network) {
    std::lock_guard lock(mutex);
    all.erase(network);
  }
};

Network::Network(const NetworkOptions& options, int process, std::uint64_t nonce,
                 const std::vector<std::string>& labels, std::shared_ptr<Arena> arena)
    : process_(process),
      labels_(labels),
      arena_(std::move(arena)),
      tls_(options.tls_library, options.key),
      reader_(options.listener, options.pids, elsewhere(options.addresses), process, nonce, labels,
              tls_, streams_, *arena_, options.num_agents, options.greeting_time),
      connections_(options.addresses.size()) {
  meet(options, nonce, false, after(options.patience_seconds));
  meet(options, nonce, true, after(options.agent_patience_seconds));
  reader_.close_when_met();
  Living::instance().add(this);
  if (reader_.is_agent(process_)) return;  // what it has heard, the others have heard as well
  herald_ = arena_->add_herald(
      [this](std::string_view text) { tell_all(Frame::kAbort, std::as_bytes(std::span(text))); });
}

void Network::meet(const NetworkOptions& options, std::uint64_t nonce, bool agents,
                   Clock::time_point end) {
  const std::size_t count = options.addresses.size();
  for (std::size_t step = 1; step < count; ++step) {  // so that not all run to the same one
    const std::size_t other = (static_cast<std::size_t>(process_) + step) % count;
    const int number = static_cast<int>(other);
    if (options.addresses[other].empty() || reader_.is_agent(number) != agents) continue;
    try {
      connect(number, options.addresses[other], nonce, end);
    } catch (const Error&) {
      if (!agents) throw;
      connections_[other].reset();
    }
  }
  agents ? reader_.wait_for_agents(end) : reader_.wait_for_processes(end);
}

// Who has the turn may be stuck until a deadline of his own.
bool Network::lock(std::unique_lock<std::mutex>& turn, const Deadline& deadline) {
  while (!turn.try_lock()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kNextTry);
  }
  return true;
}

Network::~Network() {
  Living::instance().remove(this);
  if (herald_ != 0) arena_->remove_herald(herald_);
  end_notes();
  leave();
}

// A connection may be pushed out by those of strangers before it has shown that it has the key.
void Network::connect(int process, const std::string& address, std::uint64_t nonce,
                      Clock::time_point end) {
  const NoBrokenPipe quiet;
  const std::string who = labels_[static_cast<std::size_t>(process)] + " at " + address;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      auto made = try_to_connect(who, address, end);
      greet(*made, who, process, nonce, end);
      connections_[static_cast<std::size_t>(process)] = std::move(made);
      return;
    } catch (const Dropped&) {
      if (arena_->aborted()) throw Error(arena_->abort_text());
      if (Clock::now() + pause >= end) throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

std::string Network::cannot_reach(const std::string& who, const std::string& why) const {
  return "lockstep: " + labels_[static_cast<std::size_t>(process_)] +
         " has no encrypted connection to " + who + ": " + why +
         ". LOCKSTEP_KEY_FILE has to hold the same key on all hosts; the output of that process "
         "may tell more.";
}

std::unique_ptr<Network::Connection> Network::try_to_connect(const std::string& who,
                                                             const std::string& address,
                                                             Clock::time_point end) {
  auto made = std::make_unique<Connection>();
  try {
    made->fd = connect_to(address, end);
  } catch (const Error& error) {
    throw Error("lockstep: " + labels_[static_cast<std::size_t>(process_)] + " cannot reach " +
                who + ": " + error.what() + ". Does a firewall let TCP through between the hosts?");
  }
  made->session = std::make_unique<Tls::Session>(tls_, made->fd.get(), Tls::Side::kClient);
  for (Result result; (result = made->session->handshake()) != Result::kDone;) {
    if (result == Result::kClosed) throw Dropped(cannot_reach(who, made->session->problem()));
    if (result == Result::kFailed) throw Error(cannot_reach(who, made->session->problem()));
    if (Clock::now() >= end) throw Error(cannot_reach(who, "no answer in time"));
    wait_for(made->fd.get(), result == Result::kWantsWrite, std::min(end, Clock::now() + kLook));
  }
  return made;
}

// Says who this is, and returns when the other process has accepted it.
void Network::greet(Connection& connection, const std::string& who, int process,
                    std::uint64_t nonce, Clock::time_point end) {
  const auto own = static_cast<std::uint32_t>(process_),
             other = static_cast<std::uint32_t>(process);
  const Frame greeting{.kind = Frame::kGreeting,
                       .place = own,
                       .clique = nonce,
                       .number = Frame::kVersion,
                       .to = other};
  auto bytes = std::as_bytes(std::span(&greeting, 1));
  const double left = std::chrono::duration<double>(end - Clock::now()).count();
  const Watch watch{&arena_->header().abort_state, Deadline(std::max(left, 1e-9)), {}};
  if (write(connection, bytes, watch) != Written::kAll)
    throw Dropped(cannot_reach(who, "it has closed the connection"));
  Frame answer;
  read_all(connection, who, std::as_writable_bytes(std::span(&answer, 1)), end);
  if (answer.kind == Frame::kRefusal && answer.bytes <= kAbortText) {
    std::string why(answer.bytes, ' ');
    read_all(connection, who, std::as_writable_bytes(std::span(why)), end);
    throw Error("lockstep: " + who + " has refused the connection of " +
                labels_[static_cast<std::size_t>(process_)] + ": " + why + ".");
  }
  if (answer.kind != Frame::kWelcome || answer.bytes != 0 || answer.place != other ||
      answer.to != own || answer.clique != nonce)
    throw Error(cannot_reach(who, "its answer is not that of the process that is looked for"));
}

void Network::read_all(Connection& connection, const std::string& who, std::span<std::byte> to,
                       Clock::time_point end) {
  while (!to.empty()) {
    std::size_t moved = 0;
    const Result result = connection.session->read(to, moved);
    to = to.subspan(moved);
    if (result == Result::kDone) continue;
    if (result == Result::kClosed || result == Result::kFailed)
      throw Dropped(cannot_reach(who, connection.session->problem()));
    if (arena_->aborted()) throw Error(arena_->abort_text());
    if (Clock::now() >= end) throw Error(cannot_reach(who, "no answer in time"));
    wait_for(connection.fd.get(), result == Result::kWantsWrite,
             std::min(end, Clock::now() + kLook));
  }
}

void Network::send(const Stream& stream, std::uint32_t number, const Message& message,
                   const Watch& watch) {
  send_frame(stream.process,
             {.kind = Frame::kMessage,
              .place = stream.place,
              .clique = stream.clique,
              .number = number,
              .at = static_cast<std::uint32_t>(message.at)},
             message.header, message.rest, watch);
}

void Network::release(const Stream& stream, std::uint32_t number, const Watch& watch) {
  send_frame(
      stream.process,
      {.kind = Frame::kRelease, .place = stream.place, .clique = stream.clique, .number = number},
      {}, {}, watch);
}

void Network::send_frame(int process, const Frame& frame, std::span<const std::byte> header,
                         std::span<const std::byte> rest, const Watch& watch) {
  const Written how = try_frame(process, frame, header, rest, watch);
  if (how != Written::kAll) give_up(process, how, watch);
}

Network::Written Network::try_frame(int process, Frame frame, std::span<const std::byte> header,
                                    std::span<const std::byte> rest, const Watch& watch) {
  frame.bytes = static_cast<std::uint32_t>(header.size() + rest.size());
  std::array<std::byte, kRecord> first;
  const std::size_t with = std::min(rest.size(), kRecord - sizeof(frame) - header.size());
  std::byte* end = first.data();
  for (const auto part : {std::as_bytes(std::span(&frame, 1)), header, rest.first(with)})
    end = std::ranges::copy(part, end).out;
  Connection& connection = *connections_[static_cast<std::size_t>(process)];
  std::unique_lock turn(connection.turn, std::defer_lock);
  if (!lock(turn, watch.deadline)) return Written::kLate;
  if (connection.broken) return Written::kBroken;
  Written how = write_unsent(connection, watch);
  std::span<const std::byte> parts[] = {{first.data(), end}, rest.subspan(with)};
  for (auto& part : parts)
    if (how == Written::kAll) how = write(connection, part, watch);
  // Half a frame may have gone out: nothing can follow it.
  if (how != Written::kAll) cut_off(connection);
  return how;
}

void Network::cut_off(Connection& connection) {
  connection.broken = true;
  shutdown(connection.fd.get(), SHUT_RDWR);
}

// `bytes` is then what has not gone out.
Network::Written Network::write(Connection& connection, std::span<const std::byte>& bytes,
                                const Watch& watch) {
  const NoBrokenPipe quiet;
  const auto start = Clock::now();
  auto cut = Clock::time_point::max();
  while (!bytes.empty()) {
    std::size_t moved = 0;
    const Result result = connection.session->write(bytes, moved);
    bytes = bytes.subspan(moved);
    if (result == Result::kDone) continue;
    if (result != Result::kWantsRead && result != Result::kWantsWrite) return Written::kBroken;
    const auto now = Clock::now();
    if (watch.abort->load(std::memory_order_acquire) != 0) cut = std::min(cut, now + kLastWords);
    if (watch.deadline.passed() || now >= cut) return Written::kLate;
    if (watch.stop != nullptr && watch.stop->load() != 0) return Written::kLate;
    if (watch.alarm != nullptr && now >= start + kLongWait) watch.alarm->ring();
    wait_for(connection.fd.get(), result == Result::kWantsWrite, now + kLook);
  }
  return Written::kAll;
}

// Returns if the process has left: it needs nothing any more. The other direction, which tells so,
// or why it has ended, may be a moment later.
void Network::give_up(int process, Written how, const Watch& watch) {
  const std::string& who = labels_[static_cast<std::size_t>(process)];
  const bool watched = reader_.verdict().is_watched();
  const auto end = Clock::now() + kLastWords + (watched ? Verdict::kOtherWord : Clock::duration(0));
  while (how == Written::kBroken && Clock::now() < end) {
    if (has_left(process).load(std::memory_order_acquire) != 0) return;
    if (watch.abort->load(std::memory_order_acquire) != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (arena_->aborted()) throw Error(arena_->abort_text());
  if (how == Written::kLate)
    throw Error("lockstep: " + who + " has not taken all of what " +
                labels_[static_cast<std::size_t>(process_)] +
                " sent until the deadline. --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) "
                "sets the limit; 0 means none.");
  throw Error("lockstep: the connection to " + who + " is broken: it has ended, or its host " +
              "cannot be reached.");
}

// Who cannot be told finds out by himself.
void Network::tell_all(std::uint32_t kind, std::span<const std::byte> body) {
  if (abandoned_) return;
  const Watch watch{&arena_->header().abort_state,
                    Deadline(std::chrono::duration<double>(kLastWords).count()),
                    {}};
  for (std::size_t i = 0; i < connections_.size(); ++i)
    if (connections_[i]) try_frame(static_cast<int>(i), {.kind = kind}, {}, body, watch);
}

void Network::leave() {
  if (has_left_.exchange(true)) return;
  reader_.verdict().set_left();
  if (arena_->aborted() && !reader_.is_agent(process_)) {
    // By another one of this host, whose word may be late.
    const std::string text = arena_->abort_text();
    tell_all(Frame::kAbort, std::as_bytes(std::span(text)));
  }
  tell_all(Frame::kLeave, {});
}

void Network::stop() {
  if (is_forked()) return;  // the threads are its parent's
  stopped_.store(1);
  end_notes();
  reader_.stop();
  const Deadline deadline(std::chrono::duration<double>(kLastWords).count());
  for (auto& connection : connections_) {
    if (!connection) continue;
    std::unique_lock turn(connection->turn, std::defer_lock);
    if (lock(turn, deadline)) connection->broken = true;
  }
}

void Network::abandon() {
  abandoned_ = true;
  for (auto& connection : connections_)
    if (connection) connection->fd = Descriptor();
  reader_.abandon();
}

}  // namespace lockstep
