// Encrypted connections between hosts: TLS 1.3 in which both ends prove that they know one key
// (an external PSK with an ephemeral key exchange, so that a key that leaks later opens no recorded
// traffic). There are no certificates. OpenSSL, 1.1.1 or newer, is opened at run time.
//
// OpenSSL does the handshake. Then the session takes the traffic secrets and frees OpenSSL's
// object: it seals and opens the records itself (records.h), as kernels do that have kTLS, with
// OpenSSL's cipher. So bytes are encrypted from where they are into what goes out, and decrypted
// from what came in to where they belong. SSL_write and SSL_read copy them three times more, which
// takes a third as long as the cipher.
//
// A completed handshake proves that the other end knows the key and nothing more: it may be any
// process of the job, even this one, when an attacker has turned its own connection back. Which
// process it is has to be said, and checked, inside the connection.
//
// The key must be random: an attacker can try out keys on a recorded handshake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/tcp/session.h"
#include "transport/tcp/socket_buffers.h"
#include "transport/tcp/tls_records.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX and BIO_METHOD
struct bio_method_st;

namespace lockstep {

struct OpenSsl;

// OpenSSL and what all connections with one key share. Any thread may make sessions.
class Tls : public Security {
 public:
  static constexpr std::size_t kMinKeyBytes = 16, kMaxKeyBytes = 64;  // bytes

  // `library`: a path or a soname. Throws Error.
  Tls(const std::string& library, std::span<const std::byte> key);
  ~Tls() override;

  using Result = lockstep::Session::Result;
  class Session;

  std::unique_ptr<lockstep::Session> open(int fd, Side side) const override;
  void forget_key() const override { key_.wipe(); }

 private:
  class Secret {
   public:
    explicit Secret(std::span<const std::byte> key);  // throws Error
    ~Secret();
    Secret(const Secret&) = delete;
    Secret& operator=(const Secret&) = delete;
    std::span<const std::byte> bytes() const { return {bytes_.data(), size_}; }
    void wipe();

   private:
    std::array<std::byte, kMaxKeyBytes> bytes_;
    std::size_t size_;
  };

  class Handshake;

  bool configure() const;

  mutable Secret key_;  // changed by `forget_key` alone
  const std::unique_ptr<const OpenSsl> api_;
  const std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> context_;
  const std::unique_ptr<bio_method_st, void (*)(bio_method_st*)> wire_;  // of a handshake
};

// Both ends prove that they know the key and name themselves as with Tls. What follows is neither
// encrypted nor protected against changes.
class TlsGreetingOnly : public Tls {
 public:
  using Tls::Tls;
  bool encrypts() const override { return false; }
};

class Tls::Session : public lockstep::Session {
 public:
  // RFC 8446, 5.5: with AES-GCM a key is good for 2^24.5 records, some 380 GB. A session takes a
  // new key for what it writes soon after this many.
  static constexpr std::uint32_t kRecordsPerKey = 1U << 22;
  // The bytes that are encrypted before they go out as one: a system call for each record, and a
  // packet, would cost as much as the cipher. More leaves the cache before the kernel copies it.
  static constexpr std::size_t kBatch = std::size_t{64} << 10;
  // A body of this size has records of its own, which open where it is to be; what comes before it
  // has another one.
  static constexpr std::size_t kOwnRecords = std::size_t{8} << 10;
  // Records without data in a row: more are an attempt to keep the receiver busy.
  static constexpr int kMaxIdleRecords = 32;

  Session(const Tls& tls, int fd, Side side,
          std::uint32_t records_per_key = kRecordsPerKey);  // throws Error
  ~Session() override;

  Result handshake() override;
  Result read(std::span<std::byte> to, std::size_t& moved) override;
  using lockstep::Session::write;
  Result write(std::span<const std::byte> head, std::span<const std::byte> body,
               std::size_t& moved) override;
  Result close() override;
  const std::string& problem() const override { return problem_; }
  bool was_changed() const override { return was_changed_; }

 private:
  // Receiving at once what several records bring saves system calls.
  static constexpr std::size_t kReceiveBuffer = std::size_t{64} << 10;
  // What `seal_batch` writes until the batch is full, each record perhaps after a message about a
  // new key; and an alert, and an answer to the other end's new key.
  static constexpr std::size_t kMaxRecordsPerBatch = kBatch / records::kMaxContent + 2;
  static constexpr std::size_t kKeyUpdateRecord = records::kOverhead + 5;
  static constexpr std::size_t kSendBuffer =
      kBatch + records::kMaxContent +
      kMaxRecordsPerBatch * (records::kOverhead + kKeyUpdateRecord) + 4 * kKeyUpdateRecord;

  bool ready();
  Result hand_over();
  Result receive();
  std::size_t take_content(std::span<std::byte> to);
  std::size_t whole_record() const;
  std::size_t open_record(std::size_t bytes, std::span<std::byte> to);
  void take_alert(std::span<const std::byte> content);
  void take_key_update(std::span<const std::byte> content);
  void send_answer();
  void seal_batch(std::span<const std::byte> head, std::span<const std::byte> body);
  void seal_key_update();
  void seal_alert(std::byte level, records::Alert alert);
  void seal_record(records::ContentType type, std::span<const std::byte> head,
                   std::span<const std::byte> body = {});
  Result flush();
  Result fail(const records::RecordError& error);
  Result end(Result result, std::string problem);

  const Tls& tls_;
  const int fd_;
  const Side side_;
  const std::uint32_t records_per_key_;
  ReceiveBuffer received_{kReceiveBuffer};
  SendBuffer unsent_{kSendBuffer};        // records
  std::unique_ptr<Handshake> handshake_;  // null: it is done
  std::optional<records::Sealer> sealer_;
  std::optional<records::Opener> opener_;
  std::span<std::byte> content_;  // in `received_`: of a record that was opened, and not read yet
  bool is_drained_ = false;       // the last call of the system took all there was
  int idle_records_ = 0;          // received in a row
  std::size_t accepted_ = 0;      // bytes that are in `unsent_` and will be offered again
  bool has_to_answer_ = false;    // the other end has asked for a new key
  bool is_closed_ = false;        // `close` was called
  bool was_changed_ = false;      // a record on its way to this end
  std::optional<Result> ended_;
  std::string problem_;
};

}  // namespace lockstep
