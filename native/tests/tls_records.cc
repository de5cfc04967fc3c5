// Records of TLS 1.3: OpenSSL reads what sessions write, and the reverse.
#include "transport/tcp/tls_records.h"

#include <dlfcn.h>
#include <link.h>

#include "check.h"
#include "openssl_peer.h"
#include "tls_wires.h"
#include "transport/tcp/openssl.h"

namespace lockstep::testing::tls_records {

using records::ContentType;

SecretBytes secret_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

std::string opened(records::Opener& opener, Bytes record) {
  Bytes to(records::content_room(record.size()));
  try {
    return shown(opener.open(record, to.data()).content);
  } catch (const records::RecordError& error) {
    return error.what();
  }
}

// RFC 8448, section 3: what the client sends after the handshake.
TEST(the_record_of_the_standard_s_example) {
  const Bytes secret =
      unhex<Bytes>("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
  const Bytes record = unhex<Bytes>(
      "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a2044"
      "1e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4");
  Bytes content;
  for (int i = 0; i < 50; ++i) content.push_back(static_cast<std::byte>(i));
  records::Sealer sealer(api(), secret_of(secret));
  CHECK(sealed(sealer, ContentType::kApplicationData, content) == record);
  records::Opener opener(api(), secret_of(secret));
  CHECK(opened(opener, record) == shown(content));
}

TEST(a_record_opens_in_its_turn_only) {
  const SecretBytes secret = secret_of(random_bytes(records::kSecret, 1));
  records::Sealer sealer(api(), secret);
  std::vector<Bytes> all;
  for (int i = 0; i < 6; ++i) {
    if (i == 3) sealer.update();
    all.push_back(
        sealed(sealer, ContentType::kApplicationData, bytes_of(std::to_string(i % 3) + "th")));
  }
  CHECK_EQUAL(sealer.sequence(), 3U);
  for (std::size_t turn = 0; turn < all.size(); ++turn)
    for (std::size_t other = 0; other < all.size(); ++other) {
      records::Opener opener(api(), secret);
      for (std::size_t i = 0; i < turn; ++i) {
        if (i == 3) opener.update();
        CHECK_EQUAL(opened(opener, all[i]), std::to_string(i % 3) + "th");
      }
      if (turn == 3) opener.update();
      CHECK_EQUAL(opened(opener, all[other]) == std::to_string(turn % 3) + "th", turn == other);
    }
}

// All functions come from one libssl and the libcrypto that is linked to it, however it is named.
TEST(a_library_by_its_path) {
  void* handle = dlopen(library(), RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != nullptr);
  link_map* map = nullptr;
  CHECK_EQUAL(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
  const std::string path = map->l_name;
  CHECK(path.starts_with('/'));
  const OpenSsl by_path{openssl::Library(path)};
  CHECK(by_path.crypt == api().crypt);
  const Tls tls(path, random_bytes(32, 1));
  CHECK(Shaken<Pair>(tls, shared()).open());
}

// Reads with a destination of any size until nothing comes any more.
std::string heard_in_parts(Tls::Session& session, std::mt19937_64& random) {
  std::string text;
  for (std::size_t moved;;) {
    Bytes part(1 + random() % (random() % 2 ? 100 : 40000));
    if (session.read(part, moved) != Result::kDone) return text;
    text += shown({part.data(), moved});
  }
}

TEST(openssl_reads_what_a_session_writes) {
  std::mt19937_64 random(1);
  for (const bool openssl_serves : {false, true})
    for (const std::uint32_t records_per_key : {1000000U, 3U, 1U}) {
      Shaken<Mixed> mixed(openssl_serves, records_per_key);
      for (int i = 0; i < 60; ++i) {
        const std::size_t head = i % 3 ? random() % 200 : 0, body = random() % 40000;
        const Bytes bytes = random_bytes(head + body, random());
        std::size_t moved = 0;
        CHECK(mixed.session.write(std::span(bytes).first(head), std::span(bytes).subspan(head),
                                  moved) == Result::kDone);
        CHECK_EQUAL(moved, bytes.size());
        CHECK(mixed.peer.read() == shown(bytes));
        CHECK_EQUAL(mixed.peer.problem(), "");
      }
    }
}

TEST(a_session_reads_what_openssl_writes) {
  std::mt19937_64 random(2);
  for (const bool openssl_serves : {false, true}) {
    Shaken<Mixed> mixed(openssl_serves);
    for (int i = 0; i < 60; ++i) {
      const Bytes bytes = random_bytes(random() % 50000, random());
      mixed.peer.write(bytes);
      if (i % 4 == 0) mixed.peer.take_new_key(false);
      CHECK(heard_in_parts(mixed.session, random) == shown(bytes));
      CHECK_EQUAL(mixed.session.problem(), "");
    }
  }
}

// A message about a new key has 5 bytes.
constexpr std::size_t kKeyUpdateRecord = records::kOverhead + 5;

// The answer goes out while the session reads, and with a key that OpenSSL follows.
TEST(openssl_asks_for_a_new_key) {
  for (const bool openssl_serves : {false, true}) {
    Shaken<Mixed> mixed(openssl_serves);
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j <= i; ++j) mixed.peer.take_new_key(true);
      mixed.peer.write(bytes_of("with a new key"));
      CHECK_EQUAL(received(mixed.session), "with a new key");
      CHECK_EQUAL(bytes_on(*mixed.wire.b), kKeyUpdateRecord);
      CHECK_EQUAL(mixed.peer.read(), "");
      CHECK_EQUAL(mixed.peer.problem(), "");
      say(mixed.session, "so have we");
      CHECK_EQUAL(mixed.peer.read(), "so have we");
    }
  }
}

// An answer that cannot go out while a write is unfinished follows it.
TEST(an_answer_waits_for_an_unfinished_write) {
  Shaken<Mixed> mixed(true, 1000000, 4096);
  auto& [wire, session, peer] = mixed;
  const Bytes bytes = random_bytes(60000, 3);
  std::size_t moved = 0;
  CHECK(session.write(bytes, moved) == Result::kWantsWrite);
  peer.take_new_key(true);
  peer.write(bytes_of("meanwhile"));
  CHECK_EQUAL(received(session), "meanwhile");
  std::string text = peer.read();
  while (session.write(bytes, moved) == Result::kWantsWrite) text += peer.read();
  CHECK_EQUAL(moved, bytes.size());
  text += peer.read();
  CHECK(text == shown(bytes));
  say(session, "after");
  CHECK_EQUAL(bytes_on(*wire.b), kKeyUpdateRecord + records::kOverhead + 5);
  CHECK_EQUAL(peer.read(), "after");
  CHECK_EQUAL(peer.problem(), "");
}

TEST(both_understand_the_closing_message) {
  for (const bool openssl_serves : {false, true}) {
    Shaken<Mixed> ours(openssl_serves);
    say(ours.session, "last");
    CHECK(ours.session.close() == Result::kDone);
    CHECK(ours.session.close() == Result::kDone);
    CHECK_EQUAL(ours.peer.read(), "last");
    CHECK_EQUAL(ours.peer.problem(), "closed");
    CHECK(ours.wire.b->take().empty());
    std::size_t moved = 0;
    CHECK(ours.session.write(bytes_of("more"), moved) == Result::kFailed);
    Shaken<Mixed> theirs(openssl_serves);
    theirs.peer.write(bytes_of("last"));
    theirs.peer.close();
    CHECK_EQUAL(received(theirs.session), "last");
    CHECK(theirs.session.handshake() == Result::kClosed);
    CHECK_EQUAL(theirs.session.problem(), "the other end closed the connection");
  }
}

// The client's last message and its first data may come as one.
TEST(data_right_behind_the_handshake) {
  Mixed mixed(false);
  for (int i = 0; i < 3 && !mixed.peer.shake(); ++i) mixed.session.handshake();
  mixed.peer.write(random_bytes(20000, 5));
  mixed.peer.write(bytes_of("early"));
  CHECK(mixed.session.handshake() == Result::kDone);
  CHECK(received(mixed.session) == shown(random_bytes(20000, 5)) + "early");
}

// What a write leaves on the wire: the lengths of its records.
std::vector<std::size_t> record_lengths(const Bytes& stream) {
  std::vector<std::size_t> lengths;
  for (std::span<const std::byte> left(stream); !left.empty();) {
    lengths.push_back(records::record_bytes(left) - records::kOverhead);
    left = left.subspan(lengths.back() + records::kOverhead);
  }
  return lengths;
}

TEST(a_large_body_has_records_of_its_own) {
  struct Case {
    std::size_t head, body;
    std::vector<std::size_t> lengths;
  };
  const std::size_t full = records::kMaxContent;
  for (const Case& one : {Case{96, 8191, {8287}}, Case{96, 8192, {96, 8192}}, Case{96, 0, {96}},
                          Case{96, 2 * full + 1, {96, full, full, 1}},
                          Case{full + 1, 10, {full, 11}}, Case{full + 1, 9000, {full, 1, 9000}}}) {
    Shaken<Pair> pair;
    const Bytes head(one.head), body(one.body);
    std::size_t moved = 0;
    CHECK(pair.client.write(head, body, moved) == Result::kDone);
    CHECK(record_lengths(pair.wire.b->take()) == one.lengths);
  }
}

// Two sessions, and a network that hands on any number of bytes at a time.
TEST(any_sizes_in_any_parts) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    Shaken<Tapped> tapped(1 + random() % 5);
    std::string sent, received;
    for (int i = 0; i < 20; ++i) {
      const Bytes bytes = random_bytes(random() % 30000, random());
      const auto head = std::span(bytes).first(random() % (bytes.size() + 1));
      std::size_t moved = 0;
      CHECK(tapped.client.write(head, std::span(bytes).subspan(head.size()), moved) ==
            Result::kDone);
      sent += shown(std::span(bytes).first(moved));
      const Bytes passed = tapped.near.b->take();
      for (std::span<const std::byte> left(passed); !left.empty();) {
        const std::size_t part = 1 + random() % (random() % 2 ? 50 : left.size());
        tapped.far.a->put(left.first(std::min(part, left.size())));
        left = left.subspan(std::min(part, left.size()));
        received += heard_in_parts(tapped.server, random);
      }
    }
    CHECK_EQUAL(tapped.server.problem(), "");
    CHECK(received == sent);
  }
}

}  // namespace lockstep::testing::tls_records
