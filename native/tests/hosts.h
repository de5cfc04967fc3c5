// Two hosts with one process each, in one process, and what can be done to them.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/python.h"
#include "check.h"
#include "control/network/endpoint.h"
#include "harness.h"
#include "tls_wires.h"

namespace lockstep::testing {

inline const std::vector<std::string> kLabels{"process 0", "process 1"};

// With an agent that never comes: then the ports stay open.
inline const std::vector<std::string> kOpenLabels{"process 0", "process 1", "agent 2"};

// How many seconds to wait for what comes; no test reaches it.
inline constexpr double kLong = 60;

inline SecretBytes key(unsigned char value) { return SecretBytes(32, std::byte{value}); }

// What the job of this arena fails with, once it has failed.
inline std::string failure_of(const Arena& arena) {
  eventually([&] { return arena.aborted(); }, "the failure of the job");
  return arena.abort_text();
}

inline Arena new_arena() { return Arena(Arena::create(kNonce).get(), kNonce); }

// One host with one process: where it listens, and its arena.
struct Host {
  Listener listener = listen_anywhere();
  std::shared_ptr<Arena> arena{new Arena(new_arena())};
  std::unique_ptr<Endpoint> endpoint;
  bool stays_open = false;  // set before it joins, and so is the next
  bool encrypt = true;
  int connections = 1;
  Companion* companion = nullptr;
  std::chrono::milliseconds greeting_timeout = ProgressThread::kGreetingTimeout;

  EndpointOptions options(std::vector<std::string> addresses) const {
    EndpointOptions options;
    options.addresses = std::move(addresses);
    options.listener = listener.fd.get();
    options.key = key(7);
    options.tls_library = "libssl.so.3";
    options.encrypt = encrypt;
    options.connections = connections;
    options.companion = companion;
    options.connect_timeout_seconds = 20;
    options.greeting_timeout = greeting_timeout;
    return options;
  }
  void join(int process, const std::string& other, unsigned char secret = 7,
            std::uint64_t nonce = kNonce, double timeout_seconds = 20, int num_agents = 0) {
    EndpointOptions given = options({"", ""});
    given.addresses[static_cast<std::size_t>(1 - process)] = other;
    given.key = key(secret);
    given.connect_timeout_seconds = timeout_seconds;
    given.num_agents = num_agents;
    if (stays_open) {
      given.addresses.push_back("127.0.0.1:1");
      given.num_agents = 1;
      given.agent_connect_timeout_seconds = 0.05;
    }
    endpoint = std::make_unique<Endpoint>(given, process, nonce, stays_open ? kOpenLabels : kLabels,
                                          arena);
  }

  WaitLimits limits(double seconds = 20) const {
    return {&arena->header().abort_state, Deadline(seconds), {}};
  }
};

// Two hosts join each other and cannot: the error of each. A host has this key and this job.
struct Joining {
  unsigned char second_key = 7;
  std::uint64_t nonces[2] = {kNonce, kNonce};
  double timeout_seconds = 4;  // of one that waits for the one that refuses it
};
inline std::array<std::string, 2> errors_of_joining(Host (&hosts)[2], const Joining& how = {}) {
  std::array<std::string, 2> errors;
  const auto join = [&](int process, unsigned char secret) {
    const std::string& other = hosts[1 - process].listener.address;
    errors[static_cast<std::size_t>(process)] = ERROR_OF(
        hosts[process].join(process, other, secret, how.nonces[process], how.timeout_seconds));
  };
  std::thread second(join, 1, how.second_key);
  join(0, 7);
  second.join();
  return errors;
}

// The network of a job on several hosts is an endpoint.
inline Endpoint& endpoint_of(Job& job) { return dynamic_cast<Endpoint&>(job.network()); }

// A channel's end in memory of its own, which outlives the endpoint.
struct Ring {
  static constexpr std::uint32_t kCount = 4;
  static constexpr std::size_t kBytes = kSlotHeader + 1000;
  Counter written, read;
  std::array<std::byte, kCount * kBytes> slots{};

  ReceiveRing receive_ring() { return {slots.data(), kCount, kBytes, &written, &read}; }
  SendRing send_ring() { return {&read}; }
  Message message(std::uint32_t number, std::size_t bytes) {
    const std::byte* slot = &slots[number % kCount * kBytes];
    return {std::span<const std::byte, kSlotHeader>(slot, kSlotHeader),
            {slot + kSlotHeader, bytes}};
  }
};

// A message from process 0 arrives at process 1 and is released.
inline void exchange(std::deque<Ring>& rings, Host& first, Host& second, std::uint64_t clique) {
  Ring &from = rings.emplace_back(), &to = rings.emplace_back();
  const ChannelId there{clique, 3, 1}, back{clique, 3, 0};
  first.endpoint->channels().open(there, from.send_ring());
  second.endpoint->channels().open(back, to.receive_ring());
  from.slots[kSlotHeader + 5] = std::byte{42};
  first.endpoint->send(there, 0, from.message(0, 6), first.limits());
  eventually([&] { return to.written.reached(1); }, "a message");
  CHECK(to.slots[kSlotHeader + 5] == std::byte{42});
  to.read.advance();
  second.endpoint->release(back, 0, second.limits());
  eventually([&] { return from.read.reached(1); }, "word that it was read");
}

// Process 0 and process 1 join each other.
inline void join_each_other(Host (&hosts)[2]) {
  const std::jthread other([&] { hosts[1].join(1, hosts[0].listener.address); });
  hosts[0].join(0, hosts[1].listener.address);
}

struct Two {
  std::deque<Ring> rings;
  Host hosts[2];
  explicit Two(bool stays_open = false, bool encrypt = true, int connections = 1) {
    for (Host& host : hosts)
      host.stays_open = stays_open, host.encrypt = encrypt, host.connections = connections;
    join_each_other(hosts);
  }
  void exchange(std::uint64_t clique) { testing::exchange(rings, hosts[0], hosts[1], clique); }
  bool healthy() const { return !hosts[0].arena->aborted() && !hosts[1].arena->aborted(); }
};

// What a process says of itself on a connection that it makes to process 0.
inline Frame greeting_of(int process) {
  return {.kind = Frame::kGreeting,
          .index = static_cast<std::uint32_t>(process),
          .clique = kNonce,
          .number = Frame::kVersion};
}

// Has the key of the hosts.
inline const Tls& tls_of_hosts() {
  static const Tls tls("libssl.so.3", key(7));
  return tls;
}

// A connection of a peer that has the key, after the handshake.
class Peer {
 public:
  Descriptor fd;
  Tls::Session session;

  // To a host.
  explicit Peer(const std::string& address)
      : fd(connect_to(address, Clock::now() + std::chrono::seconds(5))),
        session(tls_of_hosts(), fd.get(), Tls::Side::kClient) {
    finish();
  }
  // From a host.
  explicit Peer(const Listener& listener)
      : fd(accept_one(listener)), session(tls_of_hosts(), fd.get(), Tls::Side::kServer) {
    finish();
  }
  void send(const Frame& frame, const std::string& rest = "") {
    say(session, shown(std::as_bytes(std::span(&frame, 1))) + rest);
  }
  // The next frame; `rest`: what follows it.
  Frame receive(Bytes& rest) {
    Frame frame;
    read(std::as_writable_bytes(std::span(&frame, 1)));
    rest.resize(frame.bytes);
    read(rest);
    return frame;
  }
  // Takes the greeting of the other process, and answers as this one.
  void welcome(int process) {
    Frame greeting, answer = greeting_of(process);
    read(std::as_writable_bytes(std::span(&greeting, 1)));
    answer.kind = Frame::kWelcome;
    answer.to = greeting.index;
    send(answer);
  }

 private:
  void finish() {
    eventually([&] { return is_done(session.handshake(), "handshake: "); }, "a handshake");
  }
  void read(std::span<std::byte> to) {
    eventually(
        [&] {
          std::size_t moved = 0;
          is_done(session.read(to, moved), "read: ");
          to = to.subspan(moved);
          return to.empty();
        },
        "bytes");
  }
  // Throws when the connection has ended, and waits a moment for more of what is not done.
  bool is_done(Tls::Result result, const std::string& what) {
    if (result == Tls::Result::kFailed || result == Tls::Result::kClosed)
      throw CheckFailed(what + session.problem());
    constexpr std::chrono::milliseconds kPollInterval{20};
    if (result != Tls::Result::kDone) wait_for(fd.get(), false, Clock::now() + kPollInterval);
    return result == Tls::Result::kDone;
  }
};

// An attacker with the key in the place of process 1, of process 0, or of an agent, which is then
// the last of the two.
struct Impostor {
  Host host;
  Listener listener = listen_anywhere();
  std::unique_ptr<Peer> out;
  std::vector<std::unique_ptr<Peer>> further;  // for stripes
  std::vector<std::unique_ptr<Peer>> in;       // likewise all but the first

  explicit Impostor(int process = 1, int num_agents = 0, bool stays_open = false,
                    int connections = 1) {
    const int other = 1 - process;
    host.stays_open = stays_open;
    host.connections = connections;
    const auto count = static_cast<std::uint32_t>(connections);
    const std::jthread joining(
        [&] { host.join(other, listener.address, 7, kNonce, 20, num_agents); });
    Frame greeting = greeting_of(process);
    greeting.to = static_cast<std::uint32_t>(other);
    for (std::uint32_t which = 0; which < count; ++which) {
      greeting.extra = Frame::connection_number(which, count);
      (which == 0 ? out : further.emplace_back()) = connect(greeting);
    }
    for (std::uint32_t which = 0; which < count; ++which) {
      in.push_back(std::make_unique<Peer>(listener));
      in.back()->welcome(process);
    }
  }

  std::unique_ptr<Peer> connect(const Frame& greeting) const {
    auto made = std::make_unique<Peer>(host.listener.address);
    made->send(greeting);
    return made;
  }
  void send(const Frame& frame, const std::string& rest = "") const { out->send(frame, rest); }
};

// Why no connection to that address can be made; "" if one can.
inline std::string connection_error(const std::string& address) {
  return error_or_none([&] { connect_to(address, Clock::now() + std::chrono::seconds(5)); });
}

// Connects as an unauthenticated peer that sends `text`, and waits for the end of the connection.
inline void be_refused(const std::string& address, const std::string& text) {
  const Descriptor fd = connect_to(address, Clock::now() + std::chrono::seconds(5));
  CHECK_EQUAL(::send(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  shutdown(fd.get(), SHUT_WR);
  eventually([&] { return is_closed(fd.get()); }, "the end of the connection");
}

// What Python would tell the engine of this process, where the job has two: this one, and one at
// `other`.
struct Given {
  const char* labels[2] = {kLabels[0].c_str(), kLabels[1].c_str()};
  const char* addresses[2] = {"", ""};
  const int pids[2] = {0, 0};
  const std::string secret = std::string(32, '\7');
  lockstep_options options{};

  Given(int process, const std::string& other, int arena, int listener) {
    addresses[1 - process] = other.c_str();
    options.process = process;
    options.num_processes = 2;
    options.labels = labels;
    options.arena_fd = arena;
    options.nonce = kNonce;
    options.cores = 1;
    options.addresses = addresses;
    options.pids = pids;
    options.listener = listener;
    options.key = secret.data();
    options.key_bytes = static_cast<int>(secret.size());
    options.tls_library = "libssl.so.3";
    options.encrypt = 1;
  }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
};

}  // namespace lockstep::testing
