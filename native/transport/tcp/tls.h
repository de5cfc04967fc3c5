// Encrypted connections between hosts: TLS 1.3 in which both ends prove that they know one key
// (an external PSK with an ephemeral key exchange, so that a key that leaks later opens no recorded
// traffic). There are no certificates. OpenSSL, 1.1.1 or newer, is opened at run time.
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
#include <vector>

#include "transport/tcp/session.h"

struct ssl_st;  // OpenSSL's SSL, SSL_CTX, BIO and BIO_METHOD
struct ssl_ctx_st;
struct bio_st;
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
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

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

  // Offers the key to OpenSSL's callbacks on this thread while it lives.
  class Offer {
   public:
    explicit Offer(const Tls& tls);
    ~Offer();
    Offer(const Offer&) = delete;
    Offer& operator=(const Offer&) = delete;
  };

  // Takes the records that OpenSSL writes on this thread while it lives.
  class Sink {
   public:
    explicit Sink(std::vector<std::byte>& records);
    ~Sink();
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;
  };
  static bio_method_st* new_sink(const OpenSsl& api);

  bool configure() const;

  mutable Secret key_;  // changed by `forget_key` alone
  const std::unique_ptr<const OpenSsl> api_;
  const std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> context_;
  const std::unique_ptr<bio_method_st, void (*)(bio_method_st*)> sink_;  // where sessions write
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
  // So much is encrypted before it goes out as one: a system call for each record, and a packet,
  // would cost as much as the cipher. More leaves the cache before the kernel copies it.
  static constexpr std::size_t kBatch = std::size_t{32} << 10;

  Session(const Tls& tls, int fd, Side side,
          std::uint32_t records_per_key = kRecordsPerKey);  // throws Error
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result handshake() override;
  Result read(std::span<std::byte> to, std::size_t& moved) override;
  using lockstep::Session::write;
  Result write(std::span<const std::byte> head, std::span<const std::byte> body,
               std::size_t& moved) override;
  Result close() override;
  const std::string& problem() const override { return problem_; }

 private:
  template <typename Call>
  Result attempt(Call call);
  Result classify(int returned, int error);
  Result broken(int error, unsigned long first);
  Result verified();
  void forget_key();
  Result end(Result result, std::string problem);
  bool ready();
  bool renew_key();
  Result seal(std::span<const std::byte> head, std::span<const std::byte> body);
  Result flush();

  const Tls& tls_;
  const std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  const int fd_;
  const std::uint32_t records_per_key_;
  std::uint32_t records_ = 0;      // written with the key in use
  std::vector<std::byte> sealed_;  // records that OpenSSL has written
  std::size_t sent_ = 0;           // bytes of them that have gone out
  std::size_t accepted_ = 0;       // bytes that are in them and will be offered again
  bool open_ = false;              // the handshake is done
  std::optional<Result> ended_;
  std::string problem_;
};

}  // namespace lockstep
