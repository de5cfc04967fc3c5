// Records of TLS 1.3 that break the rules, made by a peer with the key: they end the connection,
// and the peer is told why.
#include <optional>

#include "check.h"
#include "openssl_peer.h"
#include "tls_wires.h"
#include "transport/tcp/tls_records.h"

namespace lockstep::testing::tls_record_attacks {

using records::ContentType;

// A peer with the key that makes its records by hand.
struct Forger : Shaken<Mixed> {
  explicit Forger(bool openssl_serves = true) : Shaken(openssl_serves) {
    sealer.emplace(api(), peer.own_secret());
  }
  void put(ContentType type, std::span<const std::byte> content) {
    wire.b->put(sealed(*sealer, type, content));
  }
  void put(ContentType type, const std::string& text) { put(type, bytes_of(text)); }
  // The session ends with a text, and says why to the other end.
  void check_refusal(const std::string& text, const std::string& alert) {
    CHECK_EQUAL(received(session), "");
    CHECK(session.handshake() == Result::kFailed);
    CHECK_CONTAINS(session.problem(), text);
    CHECK_EQUAL(peer.read(), "");
    CHECK_CONTAINS(peer.problem(), alert);
  }

  std::optional<records::Sealer> sealer;
};

constexpr auto kData = ContentType::kApplicationData;
constexpr auto kNoType = static_cast<ContentType>(0);

std::string text_of(std::initializer_list<int> bytes) { return {bytes.begin(), bytes.end()}; }

TEST(a_forger_s_records_are_read) {
  for (const bool openssl_serves : {false, true}) {
    Forger forger(openssl_serves);
    forger.put(kData, "as good as OpenSSL's");
    CHECK_EQUAL(received(forger.session), "as good as OpenSSL's");
  }
}

TEST(types_of_content_that_do_not_belong_here) {
  for (const int type : {1, 20, 24, 99, 255}) {
    Forger forger;
    forger.put(static_cast<ContentType>(type), "text");
    forger.check_refusal("unexpected type of content", "unexpected message");
  }
  // A ticket, a request for a certificate, a part of a message, no message.
  for (const std::string& message :
       {std::string(100, '\x04'), text_of({13, 0, 0, 1, 0}), text_of({24, 0, 0}), std::string()}) {
    Forger forger;
    forger.put(ContentType::kHandshake, message);
    forger.check_refusal("unexpected message of a handshake", "unexpected message");
  }
}

TEST(headers_that_break_the_rules) {
  struct Case {
    std::size_t byte;
    int value;
    const char *text, *alert;
  };
  for (const Case& one :
       {Case{0, 22, "not an encrypted record", "unexpected message"},
        Case{0, 21, "not an encrypted record", "unexpected message"},
        Case{0, 20, "not an encrypted record", "unexpected message"},
        Case{1, 2, "not an encrypted record", "unexpected message"},
        Case{2, 4, "not an encrypted record", "unexpected message"},
        Case{3, 0x41, "longer than TLS allows", "record overflow"},
        Case{3, 0xff, "longer than TLS allows", "record overflow"},
        Case{4, 16, "too short", "bad record mac"}, Case{4, 0, "too short", "bad record mac"}}) {
    Forger forger;
    Bytes record = sealed(*forger.sealer, kData, bytes_of("text"));
    record[one.byte] = static_cast<std::byte>(one.value);
    forger.wire.b->put(std::span(record).first(5));  // the header alone is enough
    forger.check_refusal(one.text, one.alert);
  }
}

TEST(the_longest_record) {
  Forger forger;
  const std::string text(records::kMaxContent, 'x');
  forger.put(kData, text);
  CHECK(received(forger.session) == text);
  forger.put(kData, text + 'x');
  forger.check_refusal("longer than TLS allows", "record overflow");
}

TEST(records_without_a_type) {
  for (const std::size_t zeros : {0, 1, 100, 16384}) {
    Forger forger;
    forger.put(kNoType, std::string(zeros, '\0'));
    forger.check_refusal("no type of content", "unexpected message");
  }
}

// RFC 8446, 5.4: zeros behind the type.
TEST(padding_is_left_out) {
  for (const std::size_t room : {3, 10, 50, 20000}) {
    Forger forger;
    for (const std::size_t zeros : {0, 1, 30, 16000}) {
      forger.put(kNoType, std::string("text\0", 5) + '\x17' + std::string(zeros, '\0'));
      CHECK(received(forger.session, room) == std::string("text\0", 5));
      CHECK_EQUAL(forger.session.problem(), "");
    }
  }
}

TEST(a_flood_of_records_without_data) {
  for (const bool padded : {false, true}) {
    const ContentType type = padded ? kNoType : kData;
    const std::string content = padded ? std::string("\x17\0\0", 3) : "";
    Forger forger;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < Tls::Session::kMaxIdleRecords; ++i) forger.put(type, content);
      forger.put(kData, "data");
      CHECK_EQUAL(received(forger.session), "data");
    }
    for (int i = 0; i <= Tls::Session::kMaxIdleRecords; ++i) forger.put(type, content);
    forger.check_refusal("too many records without data", "unexpected message");
  }
}

TEST(a_flood_of_new_keys) {
  Forger forger;
  for (int i = 0; i <= Tls::Session::kMaxIdleRecords; ++i) {
    forger.put(ContentType::kHandshake, text_of({24, 0, 0, 1, 0}));
    forger.sealer->update();
  }
  forger.check_refusal("too many records without data", "unexpected message");
}

TEST(messages_about_a_new_key_that_break_the_rules) {
  for (const int value : {2, 255}) {
    Forger forger;
    forger.put(ContentType::kHandshake, text_of({24, 0, 0, 1, value}));
    forger.check_refusal("wrong value", "illegal parameter");
  }
  Forger twice;  // section 5.1: it has to end its record
  twice.put(ContentType::kHandshake, text_of({24, 0, 0, 1, 0, 24, 0, 0, 1, 0}));
  twice.check_refusal("unexpected message of a handshake", "unexpected message");
}

TEST(a_key_that_was_replaced_is_not_good_any_more) {
  Forger forger;
  for (int i = 0; i < 3; ++i) forger.put(kData, "before");
  CHECK_EQUAL(received(forger.session), "beforebeforebefore");
  forger.put(ContentType::kHandshake, text_of({24, 0, 0, 1, 0}));
  forger.put(kData, "with the old key");
  forger.check_refusal("changed on its way", "bad record mac");
  // A key that has not been announced is not good yet.
  Forger early;
  early.sealer->update();
  early.put(kData, "with the next key");
  early.check_refusal("changed on its way", "bad record mac");
}

TEST(alerts) {
  Forger fatal;
  fatal.put(ContentType::kAlert, text_of({2, 40}));
  CHECK_EQUAL(received(fatal.session), "");
  CHECK(fatal.session.handshake() == Result::kFailed);
  CHECK_EQUAL(fatal.session.problem(), "the other end reports: handshake failure");
  CHECK(fatal.wire.b->take().empty());  // no alert answers one
  Forger canceled;
  canceled.put(ContentType::kAlert, text_of({1, 90}));
  canceled.put(kData, "still here");
  CHECK_EQUAL(received(canceled.session), "still here");
  canceled.put(ContentType::kAlert, text_of({1, 0}));
  CHECK_EQUAL(received(canceled.session), "");
  CHECK(canceled.session.handshake() == Result::kClosed);
  for (const std::string& text : {std::string(), text_of({2}), text_of({1, 0, 1, 0})}) {
    Forger odd;
    odd.put(ContentType::kAlert, text);
    odd.check_refusal("an alert of another length", "decode error");
  }
}

// The bytes of good records before one that is not are read first.
TEST(good_records_before_a_bad_one) {
  Forger forger;
  Bytes stream = sealed(*forger.sealer, kData, bytes_of("good"));
  Bytes bad = sealed(*forger.sealer, kData, bytes_of("bad"));
  bad.back() ^= std::byte{1};
  stream.insert(stream.end(), bad.begin(), bad.end());
  forger.wire.b->put(stream);
  Bytes to(1000);
  std::size_t moved = 0;
  CHECK(forger.session.read(to, moved) == Result::kDone);
  CHECK_EQUAL(shown({to.data(), moved}), "good");
  CHECK(forger.session.read(to, moved) == Result::kFailed);
  CHECK_EQUAL(moved, 0U);
}

}  // namespace lockstep::testing::tls_record_attacks
