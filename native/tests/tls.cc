// Encrypted connections: what is sent comes out of them, and how they end.
#include "transport/tcp/tls.h"

#include "check.h"
#include "tls_wires.h"

namespace lockstep::testing::tls {

TEST(keys_of_every_length) {
  shared();
  for (const std::size_t length : {Tls::kMinKeyBytes, std::size_t{33}, Tls::kMaxKeyBytes}) {
    const Tls tls(library(), random_bytes(length, 5));
    Shaken<Pair> pair(tls, tls);
    CHECK(pair.open());
    say(pair.client, "hello");
    CHECK_EQUAL(received(pair.server), "hello");
  }
}

TEST(what_passes_is_not_readable) {
  Shaken<Tapped> tapped;
  CHECK(tapped.at_server == Result::kDone);
  const std::string secret(100, 's');
  say(tapped.client, secret);
  tapped.relay();
  CHECK_EQUAL(received(tapped.server), secret);
  CHECK(tapped.sent.size() > secret.size());
  CHECK(shown(tapped.sent).find("ssss") == std::string::npos);
}

// The extension of a ServerHello with that number (RFC 8446, 4.1.3); empty where it is missing.
std::string extension(const Bytes& answered, unsigned number) {
  const auto byte = [&](std::size_t i) { return std::to_integer<unsigned>(answered.at(i)); };
  const auto two = [&](std::size_t i) { return byte(i) << 8 | byte(i + 1); };
  constexpr std::size_t kSession = 5 + 4 + 2 + 32;  // headers, version, random number
  std::size_t at = kSession + 1 + byte(kSession) + 2 + 1;
  const std::size_t end = at + 2 + two(at);
  for (at += 2; at < end; at += 4 + two(at + 2))
    if (two(at) == number) {
      std::string found;
      for (std::size_t i = 0; i < two(at + 2); ++i) found += static_cast<char>(byte(at + 4 + i));
      return found;
    }
  return {};
}

// A key that leaks later opens no recording: the keys of a session come from an exchange, too.
TEST(every_session_exchanges_keys_of_its_own) {
  constexpr unsigned kPreSharedKey = 41, kKeyShare = 51;
  std::string seen;
  for (int i = 0; i < 2; ++i) {
    Shaken<Tapped> tapped;
    CHECK(tapped.at_server == Result::kDone);
    CHECK_EQUAL(extension(tapped.answered, kPreSharedKey).size(), 2U);
    const std::string share = extension(tapped.answered, kKeyShare);
    CHECK(share.size() > 32);
    CHECK(share != seen);
    seen = share;
  }
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

TEST(a_write_takes_what_goes_out_at_once) {
  Shaken<Pair> pair;
  const Bytes bytes = random_bytes(100000, 4);
  std::size_t moved = 0;
  CHECK(pair.client.write(bytes, moved) == Result::kDone);
  CHECK_EQUAL(moved, Tls::Session::kBatch);
  CHECK(received(pair.server) == shown(std::span(bytes).first(moved)));
}

TEST(a_head_and_a_body_of_any_sizes) {
  Shaken<Pair> pair;
  for (const std::size_t head : {0, 1, 100, 16383, 16384, 16385, 40000})
    for (const std::size_t body : {0, 1, 16284, 16384, 33000}) {
      const Bytes bytes = random_bytes(head + body, head + body);
      std::size_t done = 0, moved = 0;
      for (; done < bytes.size(); done += moved) {
        const auto left = std::span(bytes).subspan(done);
        const auto first = left.first(done < head ? head - done : 0);
        CHECK(pair.client.write(first, left.subspan(first.size()), moved) == Result::kDone);
      }
      CHECK(received(pair.server) == shown(bytes));
    }
}

// A message about a new key that does not fit would keep its sender from reading. With one per
// record and many sizes of records, some come when there is no room.
TEST(two_ends_that_cannot_write_can_read) {
  for (std::size_t size = 1; size < 1000; size += 20) {
    Shaken<Pair> pair(local_wire(4096), 1, 1);
    Bytes bytes(size);
    std::size_t moved = 0;
    for (Tls::Session* session : {&pair.client, &pair.server}) {
      while (session->write(bytes, moved) == Result::kDone) continue;
      CHECK(session->write(bytes, moved) == Result::kWantsWrite);
    }
    CHECK(pair.client.read(bytes, moved) == Result::kDone);
    CHECK(pair.server.read(bytes, moved) == Result::kDone);
  }
}

// The message about a new key makes what passes longer.
TEST(a_new_key_after_as_many_records_as_asked_for) {
  Shaken<Pair> pair(local_wire(), 3, Tls::Session::kRecordsPerKey);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 8; ++i) {
    say(pair.client, "x");
    sizes.push_back(bytes_on(*pair.wire.b));
    CHECK_EQUAL(received(pair.server), "x");
  }
  for (std::size_t i = 0; i < sizes.size(); ++i)
    i == 3 || i == 6 ? CHECK(sizes[i] > sizes[0]) : CHECK_EQUAL(sizes[i], sizes[0]);
}

// Connections of one Tls in several threads at once.
TEST(many_threads_make_sessions) {
  shared();
  std::atomic<int> open{0};
  in_threads(4, [&](std::size_t) {
    for (int j = 0; j < 5; ++j) {
      Shaken<Pair> pair;
      open += pair.open();
    }
  });
  CHECK_EQUAL(open.load(), 20);
}

TEST(a_cut_in_the_middle_of_a_message) {
  for (const std::size_t kept : {0, 1, 5, 500}) {
    Shaken<Tapped> tapped;
    say(tapped.client, std::string(1000, 'x'));
    const Bytes message = tapped.near.b->take();
    CHECK(message.size() > 1000);
    tapped.far.a->put(std::span(message).first(kept));
    CHECK_EQUAL(received(tapped.server), "");
    CHECK(tapped.server.handshake() == Result::kDone);
    tapped.far.a->end();
    CHECK_EQUAL(received(tapped.server), "");
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

}  // namespace lockstep::testing::tls
