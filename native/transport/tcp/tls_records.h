// The record protocol of TLS 1.3 (RFC 8446, section 5) for TLS_AES_128_GCM_SHA256: the keys of one
// direction, and records sealed and opened with them. Without sockets, and without a handshake: it
// is OpenSSL's, and its traffic secrets are where this begins. The cipher is OpenSSL's, too.
//
// A record is a header of 5 bytes, and then, encrypted, the content, the byte of its type and
// padding of zeros, and the tag. The header is authenticated, and so is the number of the record,
// which is part of the nonce: a record that was changed, left out, repeated or moved does not open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/secret.h"

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace lockstep {

struct OpenSsl;

namespace records {

inline constexpr std::size_t kHeader = 5, kTag = 16, kMaxContent = std::size_t{1} << 14;
inline constexpr std::size_t kOverhead = kHeader + 1 + kTag;
inline constexpr std::size_t kMaxRecord = kMaxContent + kOverhead;
inline constexpr std::size_t kSecret = 32;  // bytes of a traffic secret: SHA-256

enum class ContentType : std::uint8_t { kAlert = 21, kHandshake = 22, kApplicationData = 23 };

// Section 6.
enum class Alert : std::uint8_t {
  kCloseNotify = 0,
  kUnexpectedMessage = 10,
  kBadRecordMac = 20,
  kRecordOverflow = 22,
  kIllegalParameter = 47,
  kDecodeError = 50,
  kInternalError = 80,
  kUserCanceled = 90,
};

// A record breaks the rules; the other end is to receive `alert`.
struct RecordError : std::runtime_error {
  RecordError(Alert alert, const std::string& what) : std::runtime_error(what), alert(alert) {}
  const Alert alert;
};

// The record is not what the other end has sealed: its bytes were changed on their way. Whatever
// else breaks the rules was sealed with the key.
struct ChangedRecord : RecordError {
  using RecordError::RecordError;
};

// The bytes of the record that `received` begins with, its header included; 0 as long as the header
// is not all there. Throws ChangedRecord when it is not that of an encrypted record.
std::size_t record_bytes(std::span<const std::byte> received);
inline std::size_t content_room(std::size_t record) { return record - kOverhead; }

// Key, nonces and record number of one direction. All calls throw RecordError when OpenSSL fails.
class Protection {
 public:
  // Section 7.2: the next traffic secret, and with it another key. The old ones are wiped.
  void update();
  // Records since the key came into use. It never wraps: a sender takes a new key long before.
  std::uint64_t sequence() const { return sequence_; }

 protected:
  Protection(const OpenSsl& api, SecretBytes traffic_secret, bool seals);
  void begin(const std::byte* header);  // the next record
  void crypt(std::span<const std::byte> from, std::byte* to);
  bool finish();
  void tag(int command, std::byte* bytes);

  const OpenSsl& api_;

 private:
  void derive_key();

  const bool seals_;
  const std::unique_ptr<evp_cipher_ctx_st, void (*)(evp_cipher_ctx_st*)> cipher_;
  SecretBytes secret_;
  SecretBytes iv_;
  std::uint64_t sequence_ = 0;
};

class Sealer : public Protection {
 public:
  Sealer(const OpenSsl& api, SecretBytes traffic_secret)
      : Protection(api, std::move(traffic_secret), true) {}
  // Writes a record with the content `head` and then `body`, at most kMaxContent bytes. Returns its
  // bytes: kOverhead more.
  std::size_t seal(ContentType type, std::span<const std::byte> head,
                   std::span<const std::byte> body, std::byte* to);
};

struct Opened {
  ContentType type;
  std::span<std::byte> content;
};

class Opener : public Protection {
 public:
  Opener(const OpenSsl& api, SecretBytes traffic_secret)
      : Protection(api, std::move(traffic_secret), false) {}
  // `record`: of the length that `record_bytes` gave. `to` has `content_room` bytes, all of which
  // are written, also when the record turns out to be forged; it may be the record's own content.
  Opened open(std::span<std::byte> record, std::byte* to);
};

}  // namespace records
}  // namespace lockstep
