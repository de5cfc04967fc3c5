// Encrypted connections under attack: which peers may have one, and that nothing but what was sent
// comes out of it.
#include "check.h"
#include "openssl_peer.h"
#include "tls_wires.h"
#include "transport/tcp/tls.h"

namespace lockstep::testing::tls_attacks {

TEST(another_key_is_refused_by_both) {
  const Tls another(library(), random_bytes(32, 2));
  Shaken<Pair> pair(shared(), another);
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
    Shaken<Pair> pair(tls, shared());
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
  Shaken<Tapped> untouched;
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
  for (std::size_t bit = 0; bit < 35 * 8; ++bit) {
    Shaken<Tapped> tapped;
    CHECK(tapped.at_server == Result::kDone);
    tapped.flip_sent = tapped.sent.size() * 8 + bit;
    say(tapped.client, "thirteen byte");
    tapped.relay();
    CHECK_EQUAL(received(tapped.server), "");
    tapped.near.a->end();
    tapped.relay();
    CHECK_EQUAL(received(tapped.server), "");
  }
}

TEST(a_recorded_conversation_is_refused) {
  Shaken<Tapped> first;
  say(first.client, "transfer");
  first.relay();
  CHECK_EQUAL(received(first.server), "transfer");
  Pair replayed;
  replayed.wire.a->put(first.sent);
  for (int i = 0; i < kRounds; ++i) replayed.at_server = replayed.server.handshake();
  CHECK(replayed.at_server == Result::kFailed);
  CHECK_EQUAL(received(replayed.server), "");
  Pair answered;
  CHECK(answered.client.handshake() == Result::kWantsRead);
  answered.wire.b->put(first.answered);
  CHECK(answered.client.handshake() == Result::kFailed);
}

// A man in the middle cannot strip the encryption once the ends have met.
TEST(plain_text_after_the_handshake_is_refused) {
  for (const bool to_server : {true, false}) {
    Shaken<Tapped> tapped;
    CHECK(tapped.at_client == Result::kDone && tapped.at_server == Result::kDone);
    Tls::Session& victim = to_server ? tapped.server : tapped.client;
    (to_server ? *tapped.far.a : *tapped.near.b).put(Bytes(4096, std::byte{1}));
    CHECK_EQUAL(received(victim), "");
    CHECK(victim.handshake() == Result::kFailed);
    CHECK(!victim.problem().empty());
  }
}

// The same OpenSSL, used as by an attacker without the key.
class Attacker : public OpenSslEnd {
 public:
  Attacker(bool server, int fd) : OpenSslEnd(server, fd) {
    if (server) certify();
  }

  void know_key(unsigned (*callback)(void*, const char*, char*, unsigned, unsigned char*,
                                     unsigned)) {
    call<void>("SSL_CTX_set_psk_client_callback", context_, callback);
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
};

TEST(a_server_with_a_certificate_is_refused) {
  Pair pair;
  Attacker server(true, pair.wire.b->fd());
  int there = 0;
  for (int i = 0; i < kRounds; ++i) {
    pair.at_client = pair.client.handshake();
    there = server.handshake();
  }
  CHECK(pair.at_client == Result::kFailed);
  CHECK_CONTAINS(pair.client.problem(), "certificate verify failed");
  CHECK(there != 1);
  // A client that asks for no proof is content with this server: it is the check that refuses.
  Pair other;
  Attacker any(true, other.wire.b->fd()), trusting(false, other.wire.a->fd());
  int here = 0;
  for (int i = 0; i < kRounds; ++i) {
    here = trusting.handshake();
    there = any.handshake();
  }
  CHECK_EQUAL(here, 1);
  CHECK_EQUAL(there, 1);
}

unsigned other_name(void* ssl, const char* hint, char* identity, unsigned room, unsigned char* key,
                    unsigned key_room) {
  const unsigned bytes = right_key(ssl, hint, identity, room, key, key_room);
  identity[0] = 'L';
  return bytes;
}

// A peer without the key gets nothing, and one with it nothing but TLS 1.3 under its name.
TEST(only_this_version_and_this_name) {
  struct Case {
    long version;
    decltype(&right_key) callback;
    bool good;
  };
  for (const Case& one : {Case{0x0304, right_key, true}, Case{0x0303, right_key, false},
                          Case{0x0304, other_name, false}, Case{0x0304, nullptr, false}}) {
    Pair pair;
    Attacker client(false, pair.wire.a->fd());
    client.set(Attacker::kMinVersion, one.version);
    client.set(Attacker::kMaxVersion, one.version);
    client.know_key(one.callback);
    for (int i = 0; i < kRounds; ++i) {
      const bool open = client.handshake() == 1;
      CHECK(one.good || !open);
      pair.at_server = pair.server.handshake();
    }
    CHECK(pair.at_server == (one.good ? Result::kDone : Result::kFailed));
    CHECK_EQUAL(pair.server.problem().empty(), one.good);
    if (one.version == 0x0303) CHECK_CONTAINS(pair.server.problem(), "unsupported protocol");
  }
}

}  // namespace lockstep::testing::tls_attacks
