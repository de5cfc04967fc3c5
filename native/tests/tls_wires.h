// Two ends of an encrypted connection, in one thread or in two, and what passes between them.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "check.h"
#include "system.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/tls.h"

namespace lockstep::testing {

using Bytes = std::vector<std::byte>;
using Result = Tls::Result;
using Side = Tls::Side;

inline constexpr auto kMaxLength = std::chrono::seconds(60);
inline constexpr int kRounds = 50;  // of two ends in one thread; a handshake takes three

// LOCKSTEP_LIBSSL: the OpenSSL to run these tests with, where it is not the system's.
inline const char* library() {
  static const char* const name = [] {
    const char* given = std::getenv("LOCKSTEP_LIBSSL");
    if (given) return given;
    return dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL) ? "libssl.so.3" : "libssl.so.1.1";
  }();
  return name;
}

inline Bytes random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(n);
  for (std::size_t at = 0; at < n; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(&bytes[at], &word, std::min(sizeof(word), n - at));
  }
  return bytes;
}

inline const Tls& shared() {
  std::signal(SIGPIPE, SIG_IGN);
  static const Tls tls(library(), random_bytes(32, 1));
  return tls;
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    CHECK(fd >= 0);
    CHECK_EQUAL(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  }
  int fd() const { return fd_.get(); }
  void put(std::span<const std::byte> bytes) const {
    CHECK_EQUAL(::write(fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  // What there is now.
  Bytes take() const {
    Bytes all, part(65536);
    for (ssize_t n; (n = ::read(fd(), part.data(), part.size())) > 0;)
      all.insert(all.end(), part.begin(), part.begin() + n);
    return all;
  }
  void end() const { shutdown(fd(), SHUT_WR); }

 private:
  const Descriptor fd_;
};

struct Wire {
  std::unique_ptr<Socket> a, b;
};

inline Wire local_wire(int buffer = 0) {
  int ends[2];
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  for (const int end : ends)
    if (buffer) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
  return {std::make_unique<Socket>(ends[0]), std::make_unique<Socket>(ends[1])};
}

// The next connection that comes.
inline Descriptor accept_one(const Listener& listener) {
  Descriptor fd;
  eventually([&] { return (fd = accept_from(listener.fd.get())).get() >= 0; }, "a connection");
  return fd;
}

inline Wire loopback_wire() {
  const Listener listener = listen_anywhere();
  Descriptor client = connect_to(listener.address, Clock::now() + kMaxLength);
  Descriptor server = accept_one(listener);
  return {std::make_unique<Socket>(client.release()), std::make_unique<Socket>(server.release())};
}

// How many bytes have come, and stay there.
inline std::size_t bytes_on(const Socket& socket) {
  Bytes seen(100000);
  const ssize_t size = recv(socket.fd(), seen.data(), seen.size(), MSG_PEEK);
  return size > 0 ? static_cast<std::size_t>(size) : 0;
}

inline bool over(Result result) { return result == Result::kClosed || result == Result::kFailed; }

inline std::string shown(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline Bytes bytes_of(const std::string& text) {
  const auto* start = reinterpret_cast<const std::byte*>(text.data());
  return {start, start + text.size()};
}

// Everything that can be read now, in parts of `most` bytes.
inline std::string received(Session& session, std::size_t most = 1000) {
  std::string text;
  Bytes part(most);
  std::size_t moved = 0;
  while (session.read(part, moved) == Result::kDone) text += shown({part.data(), moved});
  CHECK_EQUAL(moved, 0U);
  return text;
}

inline void say(Session& session, const std::string& text) {
  std::size_t moved = 0;
  CHECK(session.write(bytes_of(text), moved) == Result::kDone);
  CHECK_EQUAL(moved, text.size());
}

// Both ends in one thread, straight connected.
struct Pair {
  explicit Pair(const Tls& client_tls = shared(), const Tls& server_tls = shared())
      : wire(local_wire()),
        client(client_tls, wire.a->fd(), Side::kClient),
        server(server_tls, wire.b->fd(), Side::kServer) {}
  // With a new key after so many records of each.
  Pair(Wire given, std::uint32_t of_client, std::uint32_t of_server)
      : wire(std::move(given)),
        client(shared(), wire.a->fd(), Side::kClient, of_client),
        server(shared(), wire.b->fd(), Side::kServer, of_server) {}

  void shake() {
    for (int i = 0; i < kRounds; ++i) {
      at_client = client.handshake();
      at_server = server.handshake();
    }
  }
  bool open() const { return at_client == Result::kDone && at_server == Result::kDone; }

  Wire wire;
  Tls::Session client, server;
  Result at_client = Result::kWantsRead, at_server = Result::kWantsRead;
};

// Both ends in one thread, and a man in the middle that keeps and may change what passes.
struct Tapped {
  explicit Tapped(std::uint32_t records_per_key = Tls::Session::kRecordsPerKey)
      : near(local_wire()),
        far(local_wire()),
        client(shared(), near.a->fd(), Side::kClient, records_per_key),
        server(shared(), far.b->fd(), Side::kServer) {}

  void pass(const Socket& from, const Socket& to, Bytes& seen, std::size_t flip) const {
    Bytes bytes = from.take();
    const std::size_t start = seen.size();
    seen.insert(seen.end(), bytes.begin(), bytes.end());
    if (flip / 8 >= start && flip / 8 < seen.size())
      bytes[flip / 8 - start] ^= std::byte{1} << flip % 8;
    if (!bytes.empty()) to.put(bytes);
  }
  void relay() {
    pass(*near.b, *far.a, sent, flip_sent);
    pass(*far.a, *near.b, answered, flip_answered);
  }
  void shake() {
    for (int i = 0; i < 6; ++i) {
      at_client = client.handshake();
      relay();
      at_server = server.handshake();
      relay();
    }
  }

  Wire near, far;
  Tls::Session client, server;
  Result at_client = Result::kWantsRead, at_server = Result::kWantsRead;
  Bytes sent, answered;                                // the client's bytes, the server's
  std::size_t flip_sent = ~0UL, flip_answered = ~0UL;  // bits
};

// One of these whose ends have tried the handshake: it may have failed.
template <typename Ends>
struct Shaken : Ends {
  template <typename... Arguments>
  explicit Shaken(Arguments&&... arguments) : Ends(std::forward<Arguments>(arguments)...) {
    this->shake();
  }
};

// A thread's end of a connection, with a deadline.
class Runner {
 public:
  Runner(const Tls& tls, const Socket& socket, Side side,
         std::uint32_t records_per_key = Tls::Session::kRecordsPerKey)
      : session(tls, socket.fd(), side, records_per_key), fd_(socket.fd()) {}

  void shake() {
    for (Result result; (result = session.handshake()) != Result::kDone;) wait(result);
  }
  void send(std::span<const std::byte> bytes) {
    for (std::size_t moved; !bytes.empty(); bytes = bytes.subspan(moved)) {
      const Result result = session.write(bytes, moved);
      if (result != Result::kDone) wait(result);
    }
  }
  // Sends one while it receives the other; what is sent again is at another address.
  void exchange(std::span<const std::byte> out, std::span<std::byte> in) {
    Bytes copies[2];
    std::size_t turn = 0;
    while (!out.empty() || !in.empty()) {
      std::size_t sent = 0, received = 0;
      Bytes& moving = copies[++turn % 2];
      moving.assign(out.begin(), out.begin() + std::min<std::ptrdiff_t>(20000, std::ssize(out)));
      const Result a = out.empty() ? Result::kWantsRead : session.write(moving, sent);
      const Result b = in.empty() ? Result::kWantsRead : session.read(in, received);
      out = out.subspan(sent);
      in = in.subspan(received);
      if (a == Result::kDone || b == Result::kDone) continue;
      const bool writes = a == Result::kWantsWrite || b == Result::kWantsWrite;
      over(a) ? wait(a) : over(b) ? wait(b) : wait_for(writes ? POLLIN | POLLOUT : POLLIN);
    }
  }

  Tls::Session session;

 private:
  void wait(Result result) {
    if (over(result)) throw CheckFailed("a session ended: " + session.problem());
    wait_for(result == Result::kWantsRead ? POLLIN : POLLOUT);
  }
  void wait_for(int events) {
    pollfd descriptor{fd_, static_cast<short>(events), 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    if (left.count() <= 0 || poll(&descriptor, 1, static_cast<int>(left.count())) == 0)
      throw CheckFailed("a session waits forever");
  }

  int fd_;
  const Clock::time_point end_ = Clock::now() + kMaxLength;
};

// Runs each side in a thread of its own. The other ends as well when one has failed.
inline void both(const Wire& wire, const std::function<void()>& a, const std::function<void()>& b) {
  std::string failure[2];
  const auto guarded = [&](int side, const Socket& socket, const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      failure[side] = error.what();
      shutdown(socket.fd(), SHUT_RDWR);
    }
  };
  std::thread thread([&] { guarded(0, *wire.a, a); });
  guarded(1, *wire.b, b);
  thread.join();
  CHECK_EQUAL(failure[0] + failure[1], "");
}

}  // namespace lockstep::testing
