// Encrypted connections: which peers may have one, and that nothing but what was sent comes out of
// it.
#include "transport/tcp/tls.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/error.h"

namespace lockstep::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Result = Tls::Result;
using Side = Tls::Side;

constexpr auto kMaxLength = std::chrono::seconds(60);
constexpr int kRounds = 50;  // of two ends in one thread; a handshake takes three

// LOCKSTEP_LIBSSL: the OpenSSL to run these tests with, where it is not the system's.
const char* library() {
  static const char* const name = [] {
    const char* given = std::getenv("LOCKSTEP_LIBSSL");
    if (given) return given;
    return dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL) ? "libssl.so.3" : "libssl.so.1.1";
  }();
  return name;
}

Bytes random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

const Tls& shared() {
  std::signal(SIGPIPE, SIG_IGN);
  static const Tls tls(library(), random_bytes(32, 1));
  return tls;
}

const Tls& another() {
  shared();
  static const Tls tls(library(), random_bytes(32, 2));
  return tls;
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    CHECK(fd >= 0);
    CHECK_EQUAL(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  void put(std::span<const std::byte> bytes) const {
    CHECK_EQUAL(::write(fd_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  // What there is now.
  Bytes take() const {
    Bytes all, part(65536);
    for (ssize_t n; (n = ::read(fd_, part.data(), part.size())) > 0;)
      all.insert(all.end(), part.begin(), part.begin() + n);
    return all;
  }
  void end() const { shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
};

struct Wire {
  std::unique_ptr<Socket> a, b;
};

Wire local_wire(int buffer = 0) {
  int ends[2];
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  for (const int end : ends)
    if (buffer) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
  return {std::make_unique<Socket>(ends[0]), std::make_unique<Socket>(ends[1])};
}

Wire loopback_wire() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQUAL(bind(listener, at, size), 0);
  CHECK_EQUAL(listen(listener, 1), 0);
  CHECK_EQUAL(getsockname(listener, at, &size), 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQUAL(connect(client, at, size), 0);
  Wire wire{std::make_unique<Socket>(client),
            std::make_unique<Socket>(accept(listener, nullptr, nullptr))};
  ::close(listener);
  return wire;
}

bool over(Result result) { return result == Result::kClosed || result == Result::kFailed; }

std::string shown(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(const std::string& text) {
  const auto* start = reinterpret_cast<const std::byte*>(text.data());
  return {start, start + text.size()};
}

// Everything that can be read now.
std::string heard(Tls::Session& session) {
  std::string text;
  Bytes part(1000);
  std::size_t moved = 0;
  while (session.read(part, moved) == Result::kDone) text += shown({part.data(), moved});
  CHECK_EQUAL(moved, 0U);
  return text;
}

void say(Tls::Session& session, const std::string& text) {
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
  Tapped()
      : near(local_wire()),
        far(local_wire()),
        client(shared(), near.a->fd(), Side::kClient),
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
  void receive(std::span<std::byte> bytes) {
    for (std::size_t moved; !bytes.empty(); bytes = bytes.subspan(moved)) {
      const Result result = session.read(bytes, moved);
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

  using Clock = std::chrono::steady_clock;
  int fd_;
  const Clock::time_point end_ = Clock::now() + kMaxLength;
};

// Runs each side in a thread of its own. The other ends as well when one has failed.
void both(const Wire& wire, const std::function<void()>& a, const std::function<void()>& b) {
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

TEST(one_key_opens_a_connection_both_ways) {
  Pair pair;
  pair.shake();
  CHECK_EQUAL(pair.client.problem() + pair.server.problem(), "");
  CHECK(pair.open());
  CHECK_EQUAL(heard(pair.server), "");
  say(pair.client, "to the server");
  say(pair.server, "to the client");
  CHECK_EQUAL(heard(pair.server), "to the server");
  CHECK_EQUAL(heard(pair.client), "to the client");
}

TEST(keys_of_every_length) {
  shared();
  for (const std::size_t length : {Tls::kMinKeyBytes, std::size_t{33}, Tls::kMaxKeyBytes}) {
    const Tls tls(library(), random_bytes(length, 5));
    Pair pair(tls, tls);
    pair.shake();
    CHECK(pair.open());
    say(pair.client, "hello");
    CHECK_EQUAL(heard(pair.server), "hello");
  }
}

TEST(what_passes_is_not_readable) {
  Tapped tapped;
  tapped.shake();
  CHECK(tapped.at_server == Result::kDone);
  const std::string secret(100, 's');
  say(tapped.client, secret);
  tapped.relay();
  CHECK_EQUAL(heard(tapped.server), secret);
  CHECK(tapped.sent.size() > secret.size());
  CHECK(shown(tapped.sent).find("ssss") == std::string::npos);
}

void check_transfer(const Wire& wire, std::uint32_t records_per_key) {
  constexpr std::size_t kBytes = 8 << 20;
  const Bytes there = random_bytes(kBytes, 7), back = random_bytes(kBytes, 8);
  Bytes at_server(kBytes), at_client(kBytes);
  const auto side = [&](const Socket& socket, Side side, const Bytes& out, Bytes& in) {
    Runner runner(shared(), socket, side, records_per_key);
    runner.shake();
    runner.exchange(out, in);
  };
  both(
      wire, [&] { side(*wire.a, Side::kClient, there, at_client); },
      [&] { side(*wire.b, Side::kServer, back, at_server); });
  CHECK(at_server == there);
  CHECK(at_client == back);
}

TEST(much_through_small_buffers) { check_transfer(local_wire(4096), 1000000); }
TEST(much_over_loopback) { check_transfer(loopback_wire(), 1000000); }
TEST(much_with_many_new_keys) {
  check_transfer(local_wire(65536), 3);
  check_transfer(loopback_wire(), 2);
}

TEST(a_write_takes_what_fits_one_record) {
  Pair pair;
  pair.shake();
  const Bytes bytes = random_bytes(100000, 4);
  std::size_t moved = 0;
  CHECK(pair.client.write(bytes, moved) == Result::kDone);
  CHECK_EQUAL(moved, 16384U);
  CHECK(heard(pair.server) == shown(std::span(bytes).first(moved)));
}

// A message about a new key that does not fit would keep its sender from reading. With one per
// record and many sizes of records, some come when there is no room.
TEST(two_ends_that_cannot_write_can_read) {
  for (std::size_t size = 1; size < 1000; size += 20) {
    const Wire wire = local_wire(4096);
    Tls::Session client(shared(), wire.a->fd(), Side::kClient, 1);
    Tls::Session server(shared(), wire.b->fd(), Side::kServer, 1);
    for (int i = 0; i < 6; ++i) {
      client.handshake();
      server.handshake();
    }
    Bytes bytes(size);
    std::size_t moved = 0;
    for (Tls::Session* session : {&client, &server}) {
      while (session->write(bytes, moved) == Result::kDone) continue;
      CHECK(session->write(bytes, moved) == Result::kWantsWrite);
    }
    CHECK(client.read(bytes, moved) == Result::kDone);
    CHECK(server.read(bytes, moved) == Result::kDone);
  }
}

// The message about a new key makes what passes longer.
TEST(a_new_key_after_as_many_records_as_asked_for) {
  Wire wire = local_wire();
  Tls::Session client(shared(), wire.a->fd(), Side::kClient, 3);
  Tls::Session server(shared(), wire.b->fd(), Side::kServer);
  for (int i = 0; i < kRounds; ++i) {
    client.handshake();
    server.handshake();
  }
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 8; ++i) {
    say(client, "x");
    Bytes seen(1000);
    const ssize_t size = recv(wire.b->fd(), seen.data(), seen.size(), MSG_PEEK);
    CHECK(size > 0);
    sizes.push_back(static_cast<std::size_t>(size));
    CHECK_EQUAL(heard(server), "x");
  }
  for (std::size_t i = 0; i < sizes.size(); ++i)
    i == 3 || i == 6 ? CHECK(sizes[i] > sizes[0]) : CHECK_EQUAL(sizes[i], sizes[0]);
}

// Connections of one Tls in several threads at once.
TEST(many_threads_make_sessions) {
  shared();
  std::vector<std::thread> threads;
  std::atomic<int> open{0};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 5; ++j) {
        Pair pair;
        pair.shake();
        open += pair.open();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQUAL(open.load(), 20);
}

TEST(another_key_is_refused_by_both) {
  Pair pair(shared(), another());
  pair.shake();
  CHECK(pair.at_client == Result::kFailed);
  CHECK(pair.at_server == Result::kFailed);
  CHECK_CONTAINS(pair.client.problem(), "do not have the same key", "alert");
  CHECK_CONTAINS(pair.server.problem(), "do not have the same key", "binder does not verify");
  for (Tls::Session* session : {&pair.client, &pair.server}) {
    std::size_t moved = 1;
    CHECK(session->write(bytes_of("secret"), moved) == Result::kFailed);
    CHECK_EQUAL(moved, 0U);
    Bytes room(10);
    CHECK(session->read(room, moved) == Result::kFailed);
    CHECK(session->close() == Result::kFailed);
    CHECK(session->handshake() == Result::kFailed);
  }
  CHECK(pair.wire.a->take().empty());
  CHECK(pair.wire.b->take().empty());
}

TEST(a_key_that_differs_in_one_bit_or_goes_on) {
  const Bytes key = random_bytes(32, 1);
  Bytes flipped = key, longer = key;
  flipped.back() ^= std::byte{0x80};
  longer.push_back(std::byte{0});
  for (const Bytes& other : {flipped, longer}) {
    const Tls tls(library(), other);
    Pair pair(tls, shared());
    pair.shake();
    CHECK(pair.at_client == Result::kFailed);
    CHECK(pair.at_server == Result::kFailed);
  }
}

TEST(nothing_moves_before_the_handshake) {
  Pair pair;
  std::size_t moved = 1;
  CHECK(pair.client.write(bytes_of("early"), moved) == Result::kFailed);
  CHECK_EQUAL(moved, 0U);
  CHECK_CONTAINS(pair.client.problem(), "before its handshake");
  CHECK(pair.wire.b->take().empty());
  Bytes room(10);
  CHECK(pair.server.read(room, moved) == Result::kFailed);
}

TEST(plain_text_is_refused) {
  Pair pair;
  pair.wire.a->put(bytes_of("GET / HTTP/1.1\r\nHost: here\r\n\r\n"));
  CHECK(pair.server.handshake() == Result::kFailed);
  CHECK_CONTAINS(pair.server.problem(), "http request");
  Pair other;
  other.wire.a->put(bytes_of("lockstep hello, rank 3 of 4\n"));
  CHECK(other.server.handshake() == Result::kFailed);
  CHECK(!other.server.problem().empty());
}

// Half of it looks like the beginning of a handshake.
Bytes garbage(std::uint64_t seed, std::byte kind) {
  Bytes bytes = random_bytes(1 + seed * 7 % 700, seed);
  if (seed % 2 == 0) return bytes;
  const std::size_t body = bytes.size();
  const auto high = static_cast<std::byte>(body >> 8), low = static_cast<std::byte>(body);
  bytes[0] = kind;
  const std::byte header[] = {std::byte{22}, std::byte{3}, std::byte{3}, high, low};
  bytes.insert(bytes.begin(), std::begin(header), std::end(header));
  return bytes;
}

TEST(garbage_is_never_a_handshake) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Pair pair;
    pair.wire.a->put(garbage(seed, std::byte{1}));
    pair.wire.a->end();
    CHECK(over(pair.server.handshake()));
    CHECK(!pair.server.problem().empty());
    Pair other;
    CHECK(other.client.handshake() == Result::kWantsRead);
    other.wire.b->put(garbage(seed, std::byte{2}));
    other.wire.b->end();
    CHECK(over(other.client.handshake()));
  }
}

// The version in the header of a plain record means nothing, and nothing protects it.
std::vector<std::size_t> protected_bits(const Bytes& stream) {
  std::vector<std::size_t> bits;
  for (std::size_t at = 0; at + 5 <= stream.size();) {
    const bool plain = stream[at] != std::byte{23};
    const auto body = std::to_integer<std::size_t>(stream[at + 3]) * 256 +
                      std::to_integer<std::size_t>(stream[at + 4]);
    for (std::size_t byte = 0; byte < 5 + body; ++byte)
      for (std::size_t bit = 0; bit < 8; ++bit)
        if (!plain || (byte != 1 && byte != 2)) bits.push_back((at + byte) * 8 + bit);
    at += 5 + body;
  }
  return bits;
}

TEST(a_changed_bit_spoils_the_handshake) {
  Tapped untouched;
  untouched.shake();
  CHECK(untouched.at_client == Result::kDone && untouched.at_server == Result::kDone);
  std::mt19937_64 random(3);
  for (const bool to_server : {true, false}) {
    auto bits = protected_bits(to_server ? untouched.sent : untouched.answered);
    CHECK(bits.size() > 1000);
    std::ranges::shuffle(bits, random);
    for (std::size_t i = 0; i < 250; ++i) {
      Tapped tapped;
      (to_server ? tapped.flip_sent : tapped.flip_answered) = bits[i];
      tapped.shake();
      CHECK((to_server ? tapped.at_server : tapped.at_client) != Result::kDone);
    }
  }
}

TEST(a_changed_bit_spoils_the_data) {
  for (std::size_t bit = 0; bit < 35 * 8; bit += 3) {
    Tapped tapped;
    tapped.shake();
    CHECK(tapped.at_server == Result::kDone);
    tapped.flip_sent = tapped.sent.size() * 8 + bit;
    say(tapped.client, "thirteen byte");
    tapped.relay();
    CHECK_EQUAL(heard(tapped.server), "");
    tapped.near.a->end();
    tapped.relay();
    CHECK_EQUAL(heard(tapped.server), "");
  }
}

TEST(a_recorded_conversation_is_refused) {
  Tapped first;
  first.shake();
  say(first.client, "transfer");
  first.relay();
  CHECK_EQUAL(heard(first.server), "transfer");
  Pair replayed;
  replayed.wire.a->put(first.sent);
  for (int i = 0; i < kRounds; ++i) replayed.at_server = replayed.server.handshake();
  CHECK(replayed.at_server == Result::kFailed);
  CHECK_EQUAL(heard(replayed.server), "");
  Pair answered;
  CHECK(answered.client.handshake() == Result::kWantsRead);
  answered.wire.b->put(first.answered);
  CHECK(answered.client.handshake() == Result::kFailed);
}

// Within one conversation.
TEST(a_repeated_message_is_refused) {
  Tapped tapped;
  tapped.shake();
  const std::size_t start = tapped.sent.size();
  say(tapped.client, "once");
  tapped.relay();
  CHECK_EQUAL(heard(tapped.server), "once");
  tapped.far.a->put(std::span(tapped.sent).subspan(start));
  CHECK_EQUAL(heard(tapped.server), "");
  CHECK(tapped.server.handshake() == Result::kFailed);
  CHECK(!tapped.server.problem().empty());
}

TEST(an_orderly_end) {
  Pair pair;
  pair.shake();
  say(pair.client, "last");
  CHECK(pair.client.close() == Result::kDone);
  CHECK_EQUAL(heard(pair.server), "last");
  CHECK(pair.server.handshake() == Result::kClosed);
  CHECK_EQUAL(pair.server.problem(), "the other end closed the connection");
}

TEST(an_end_without_a_word) {
  Pair pair;
  pair.shake();
  say(pair.client, "last");
  pair.wire.a->end();
  CHECK_EQUAL(heard(pair.server), "last");
  std::size_t moved = 0;
  Bytes room(1);
  CHECK(pair.server.read(room, moved) == Result::kClosed);
  CHECK_CONTAINS(pair.server.problem(), "without TLS's closing message");
}

TEST(a_cut_in_the_middle_of_a_message) {
  for (const std::size_t kept : {std::size_t{1}, std::size_t{5}, std::size_t{500}}) {
    Tapped tapped;
    tapped.shake();
    say(tapped.client, std::string(1000, 'x'));
    const Bytes message = tapped.near.b->take();
    CHECK(message.size() > 1000);
    tapped.far.a->put(std::span(message).first(kept));
    CHECK_EQUAL(heard(tapped.server), "");
    CHECK(tapped.server.handshake() == Result::kDone);
    tapped.far.a->end();
    CHECK_EQUAL(heard(tapped.server), "");
    CHECK(tapped.server.handshake() == Result::kClosed);
    CHECK_CONTAINS(tapped.server.problem(), "without TLS's closing message");
  }
}

TEST(a_cut_in_the_middle_of_the_handshake) {
  Pair source;
  CHECK(source.client.handshake() == Result::kWantsRead);
  const Bytes hello = source.wire.b->take();
  for (const std::size_t kept : {std::size_t{0}, std::size_t{3}, hello.size() / 2, hello.size()}) {
    Pair pair;
    pair.wire.a->put(std::span(hello).first(kept));
    CHECK(pair.server.handshake() == Result::kWantsRead);
    pair.wire.a->end();
    CHECK(pair.server.handshake() == Result::kClosed);
    CHECK_CONTAINS(pair.server.problem(), "without TLS's closing message");
  }
}

TEST(an_end_that_is_gone) {
  Wire wire = loopback_wire();
  Runner client(shared(), *wire.a, Side::kClient);
  both(wire, [&] { client.shake(); }, [&] { Runner(shared(), *wire.b, Side::kServer).shake(); });
  wire.b.reset();
  const Bytes bytes(100000);
  std::string text;
  try {
    for (int i = 0; i < 1000; ++i) client.send(bytes);
  } catch (const CheckFailed& error) {
    text = error.what();
  }
  CHECK(text.find("Broken pipe") != std::string::npos || text.find("reset") != std::string::npos);
}

constexpr void* kNone = nullptr;

// The same OpenSSL, used as by an attacker without the key.
class Attacker {
 public:
  Attacker(bool server, int fd) {
    context_ = call<void*>("SSL_CTX_new", call<const void*>("TLS_method"));
    if (server) certify();
    server_ = server;
    fd_ = fd;
  }
  ~Attacker() {
    if (ssl_) call<void>("SSL_free", ssl_);
    call<void>("SSL_CTX_free", context_);
  }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

  void set(int command, long value) {
    CHECK_EQUAL(call<long>("SSL_CTX_ctrl", context_, command, value, kNone), 1);
  }
  void know_key(unsigned (*callback)(void*, const char*, char*, unsigned, unsigned char*,
                                     unsigned)) {
    call<void>("SSL_CTX_set_psk_client_callback", context_, callback);
  }
  int shake() {
    if (!ssl_) {
      ssl_ = call<void*>("SSL_new", context_);
      call<int>("SSL_set_fd", ssl_, fd_);
      call<void>(server_ ? "SSL_set_accept_state" : "SSL_set_connect_state", ssl_);
    }
    call<void>("ERR_clear_error");
    return call<int>("SSL_do_handshake", ssl_);
  }

 private:
  // A certificate of its own making.
  void certify() {
    void* maker = call<void*>("EVP_PKEY_CTX_new_id", 1087 /* Ed25519 */, kNone);
    void* key = nullptr;
    CHECK_EQUAL(call<int>("EVP_PKEY_keygen_init", maker), 1);
    CHECK_EQUAL(call<int>("EVP_PKEY_keygen", maker, &key), 1);
    void* certificate = call<void*>("X509_new");
    call<void*>("X509_gmtime_adj", call<void*>("X509_getm_notBefore", certificate), -3600L);
    call<void*>("X509_gmtime_adj", call<void*>("X509_getm_notAfter", certificate), 3600L);
    CHECK_EQUAL(call<int>("X509_set_pubkey", certificate, key), 1);
    CHECK(call<int>("X509_sign", certificate, key, kNone) > 0);
    CHECK_EQUAL(call<int>("SSL_CTX_use_certificate", context_, certificate), 1);
    CHECK_EQUAL(call<int>("SSL_CTX_use_PrivateKey", context_, key), 1);
    call<void>("X509_free", certificate);
    call<void>("EVP_PKEY_free", key);
    call<void>("EVP_PKEY_CTX_free", maker);
  }
  template <typename Value, typename... Arguments>
  static Value call(const char* name, Arguments... arguments) {
    static void* handle = dlopen(library(), RTLD_NOW | RTLD_LOCAL);
    void* symbol = dlsym(handle, name);
    if (!symbol) throw CheckFailed(std::string("no symbol ") + name);
    return reinterpret_cast<Value (*)(Arguments...)>(symbol)(arguments...);
  }

  void* context_;
  void* ssl_ = nullptr;
  bool server_;
  int fd_;
};

constexpr int kMinVersion = 123, kMaxVersion = 124;

TEST(a_server_with_a_certificate_is_refused) {
  Pair pair;
  Attacker server(true, pair.wire.b->fd());
  int there = 0;
  for (int i = 0; i < kRounds; ++i) {
    pair.at_client = pair.client.handshake();
    there = server.shake();
  }
  CHECK(pair.at_client == Result::kFailed);
  CHECK_CONTAINS(pair.client.problem(), "certificate verify failed");
  CHECK(there != 1);
  // A client that asks for no proof is content with this server: it is the check that refuses.
  Pair other;
  Attacker any(true, other.wire.b->fd()), trusting(false, other.wire.a->fd());
  int here = 0;
  for (int i = 0; i < kRounds; ++i) {
    here = trusting.shake();
    there = any.shake();
  }
  CHECK_EQUAL(here, 1);
  CHECK_EQUAL(there, 1);
}

TEST(a_client_without_a_key_is_refused) {
  Pair pair;
  Attacker client(false, pair.wire.a->fd());
  for (int i = 0; i < kRounds; ++i) {
    CHECK(client.shake() != 1);
    pair.at_server = pair.server.handshake();
  }
  CHECK(pair.at_server == Result::kFailed);
  CHECK(!pair.server.problem().empty());
}

unsigned right_key(void*, const char*, char* identity, unsigned, unsigned char* key, unsigned) {
  const Bytes bytes = random_bytes(32, 1);
  std::ranges::copy("lockstep", identity);
  std::ranges::copy(bytes, reinterpret_cast<std::byte*>(key));
  return 32;
}

unsigned other_name(void* ssl, const char* hint, char* identity, unsigned room, unsigned char* key,
                    unsigned key_room) {
  const unsigned bytes = right_key(ssl, hint, identity, room, key, key_room);
  identity[0] = 'L';
  return bytes;
}

// Even a peer with the key gets nothing but TLS 1.3 under its name.
TEST(only_this_version_and_this_name) {
  struct Case {
    long version;
    decltype(&right_key) callback;
    bool good;
  };
  for (const Case& one : {Case{0x0304, right_key, true}, Case{0x0303, right_key, false},
                          Case{0x0304, other_name, false}}) {
    Pair pair;
    Attacker client(false, pair.wire.a->fd());
    client.set(kMinVersion, one.version);
    client.set(kMaxVersion, one.version);
    client.know_key(one.callback);
    for (int i = 0; i < kRounds; ++i) {
      const bool open = client.shake() == 1;
      CHECK(one.good || !open);
      pair.at_server = pair.server.handshake();
    }
    CHECK(pair.at_server == (one.good ? Result::kDone : Result::kFailed));
    if (one.version == 0x0303) CHECK_CONTAINS(pair.server.problem(), "unsupported protocol");
  }
}

TEST(no_library) {
  const Bytes key = random_bytes(32, 1);
  CHECK_CONTAINS(ERROR_OF(Tls("libssl.so.0", key)), "lockstep: OpenSSL could not be opened",
                 "libssl.so.0", "install it", ".");
}

TEST(a_library_that_is_another) {
  const Bytes key = random_bytes(32, 1);
  CHECK_CONTAINS(ERROR_OF(Tls("libc.so.6", key)), "lockstep: libc.so.6 has no OPENSSL_init_ssl",
                 "OpenSSL 1.1.1 or newer");
}

TEST(keys_of_wrong_length) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{15}, std::size_t{65}})
    CHECK_CONTAINS(ERROR_OF(Tls(library(), random_bytes(length, 1))),
                   "has " + std::to_string(length) + " bytes", "16 to 64");
}

}  // namespace
}  // namespace lockstep::testing
