#include "transport/tcp/tls_records.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/tcp/openssl.h"

namespace lockstep::records {
namespace {

using namespace openssl;

constexpr std::size_t kKey = 16, kNonce = 12;

// Section 5.2: what shows of every encrypted record. The version is that of TLS 1.2, forever.
constexpr std::byte kOpaqueType{23}, kVersion[] = {std::byte{3}, std::byte{3}};

const unsigned char* in(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* out(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

void check(const OpenSsl& api, bool done) {
  if (!done)
    throw RecordError(Alert::kInternalError,
                      "OpenSSL cannot encrypt or decrypt: " + api.text_of(api.take_error()));
}

// HKDF-Expand-Label of section 7.1, without a context. A result of up to one hash takes a single
// step of HKDF-Expand (RFC 5869), which is an HMAC.
SecretBytes expand_label(const OpenSsl& api, const SecretBytes& secret, std::string_view label,
                         std::size_t bytes) {
  constexpr std::string_view kPrefix = "tls13 ";
  std::vector<std::byte> info{std::byte{0}, static_cast<std::byte>(bytes),
                              static_cast<std::byte>(kPrefix.size() + label.size())};
  for (const std::string_view part : {kPrefix, label})
    std::ranges::copy(std::as_bytes(std::span(part)), std::back_inserter(info));
  info.push_back(std::byte{0});  // the length of the context
  info.push_back(std::byte{1});  // the number of the step
  SecretBytes hash(kSecret);
  unsigned size = 0;
  check(api, api.hmac(api.sha256(), secret.data(), static_cast<int>(secret.size()), in(info.data()),
                      info.size(), out(hash.data()), &size) != nullptr &&
                 size == kSecret);
  hash.resize(bytes);
  return hash;
}

}  // namespace

std::size_t record_bytes(std::span<const std::byte> received) {
  if (received.size() < kHeader) return 0;
  if (received[0] != kOpaqueType || !std::ranges::equal(received.subspan(1, 2), kVersion))
    throw ChangedRecord(Alert::kUnexpectedMessage, "what has arrived is not an encrypted record");
  const auto length =
      std::to_integer<std::size_t>(received[3]) << 8 | std::to_integer<std::size_t>(received[4]);
  if (kHeader + length > kMaxRecord)
    throw ChangedRecord(Alert::kRecordOverflow, "a record is longer than TLS allows");
  if (kHeader + length < kOverhead)
    throw ChangedRecord(Alert::kBadRecordMac, "a record is too short to be encrypted");
  return kHeader + length;
}

Protection::Protection(const OpenSsl& api, SecretBytes traffic_secret, bool seals)
    : api_(api),
      seals_(seals),
      cipher_(api.new_cipher(), api.free_cipher),
      secret_(std::move(traffic_secret)) {
  derive_key();
}

void Protection::derive_key() {
  const SecretBytes key = expand_label(api_, secret_, "key", kKey);
  SecretBytes iv = expand_label(api_, secret_, "iv", kNonce);
  check(api_, cipher_ && api_.init_cipher(cipher_.get(), api_.aes_128_gcm(), nullptr,
                                          in(key.data()), nullptr, seals_) == 1);
  iv_ = std::move(iv);
  sequence_ = 0;
}

void Protection::update() {
  secret_ = expand_label(api_, secret_, "traffic upd", kSecret);
  derive_key();
}

// Section 5.3: the nonce is the initialization vector, its last 64 bits combined with the number of
// the record. Section 5.2: the header is authenticated.
void Protection::begin(const std::byte* header) {
  std::array<std::byte, kNonce> nonce;
  std::ranges::copy(iv_, nonce.begin());
  for (std::size_t i = 0; i < sizeof(sequence_); ++i)
    nonce[kNonce - 1 - i] ^= static_cast<std::byte>(sequence_ >> 8 * i);
  ++sequence_;
  int size = 0;
  check(api_,
        api_.init_cipher(cipher_.get(), nullptr, nullptr, nullptr, in(nonce.data()), seals_) == 1 &&
            api_.crypt(cipher_.get(), nullptr, &size, in(header), kHeader) == 1);
}

// GCM is a stream: as many bytes come out as go in.
void Protection::crypt(std::span<const std::byte> from, std::byte* to) {
  int size = 0;
  if (from.empty()) return;
  check(api_, api_.crypt(cipher_.get(), out(to), &size, in(from.data()),
                         static_cast<int>(from.size())) == 1);
}

bool Protection::finish() {
  unsigned char nothing[kTag];
  int size = 0;
  return api_.finish_cipher(cipher_.get(), nothing, &size) == 1;
}

void Protection::tag(int command, std::byte* bytes) {
  check(api_, api_.control_cipher(cipher_.get(), command, kTag, bytes) == 1);
}

std::size_t Sealer::seal(ContentType type, std::span<const std::byte> head,
                         std::span<const std::byte> body, std::byte* to) {
  const std::size_t content = head.size() + body.size(), length = content + 1 + kTag;
  to[0] = kOpaqueType;
  std::ranges::copy(kVersion, to + 1);
  to[3] = static_cast<std::byte>(length >> 8);
  to[4] = static_cast<std::byte>(length);
  begin(to);
  std::byte* const at = to + kHeader;
  const auto last = static_cast<std::byte>(type);
  crypt(head, at);
  crypt(body, at + head.size());
  crypt({&last, 1}, at + content);
  check(api_, finish());
  tag(kGetTag, at + content + 1);
  return kHeader + length;
}

Opened Opener::open(std::span<std::byte> record, std::byte* to) {
  const std::size_t room = content_room(record.size());
  const std::span<std::byte> sealed = record.subspan(kHeader);
  std::byte type;
  begin(record.data());
  tag(kSetTag, sealed.data() + room + 1);
  crypt(sealed.first(room), to);
  crypt(sealed.subspan(room, 1), &type);
  if (!finish()) {
    api_.clear_errors();
    throw ChangedRecord(Alert::kBadRecordMac, "a record was changed on its way");
  }
  // Section 5.4: the type is the last byte that is not zero.
  std::size_t bytes = room;
  while (type == std::byte{0} && bytes > 0) type = to[--bytes];
  if (type == std::byte{0})
    throw RecordError(Alert::kUnexpectedMessage, "a record has no type of content");
  return {static_cast<ContentType>(type), {to, bytes}};
}

}  // namespace lockstep::records
