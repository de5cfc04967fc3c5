// Encrypted connections between hosts: TLS 1.3 in which both ends prove that they know one key
// (an external PSK with an ephemeral key exchange, so that a key that leaks later opens no recorded
// traffic). There are no certificates. OpenSSL, 1.1.1 or newer, is opened at run time.
//
// Who completes a handshake knows the key, and that is all that is known about it: it may be any
// process of the job, even this one, to which somebody has turned back its own connection. Which
// process it is has to be said, and checked, inside the connection.
//
// The key must be random: who records a handshake can try out keys at leisure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

struct ssl_st;  // OpenSSL's SSL and SSL_CTX
struct ssl_ctx_st;

namespace lockstep {

// OpenSSL and what all connections with one key share. Any thread may make sessions.
class Tls {
 public:
  static constexpr std::size_t kShortestKey = 16, kLongestKey = 64;  // bytes

  // `library`: a path or a soname. Throws Error.
  Tls(const std::string& library, std::span<const std::byte> key);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Wipes the key from memory: no handshake is completed any more. No other thread is in one.
  void forget_key() const { key_.wipe(); }

  enum class Result { kDone, kWantsRead, kWantsWrite, kClosed, kFailed };
  enum class Side { kClient, kServer };
  class Session;

 private:
  struct Api;

  class Secret {
   public:
    explicit Secret(std::span<const std::byte> key);  // throws Error
    ~Secret();
    Secret(const Secret&) = delete;
    Secret& operator=(const Secret&) = delete;
    std::span<const std::byte> bytes() const { return {bytes_.data(), size_}; }
    void wipe();

   private:
    std::array<std::byte, kLongestKey> bytes_;
    std::size_t size_;
  };

  bool configure() const;

  mutable Secret key_;  // changed by `forget_key` alone
  const std::unique_ptr<const Api> api_;
  const std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> context_;
};

// One end of a connection, used by one thread at a time. The Tls outlives it. The descriptor is
// non-blocking and remains its owner's.
//
// Sessions read ahead: the descriptor says whether there is something to read only after
// kWantsRead. A call may want the other direction (a read kWantsWrite). kClosed and kFailed are
// final, for all calls.
class Tls::Session {
 public:
  // RFC 8446, 5.5: with AES-GCM a key is good for 2^24.5 records, some 380 GB. A session takes a
  // new key for what it writes soon after this many.
  static constexpr std::uint32_t kRecordsPerKey = 1U << 22;

  Session(const Tls& tls, int fd, Side side,
          std::uint32_t records_per_key = kRecordsPerKey);  // throws Error
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Until this is kDone nothing can be read or written.
  Result handshake();
  // `moved`: how many bytes were; with kDone more than 0 (unless the span is empty), else 0.
  Result read(std::span<std::byte> to, std::size_t& moved);
  // Likewise; takes a part of `from`. After kWantsRead or kWantsWrite the same bytes have to be
  // offered again, perhaps at another address and with more behind them.
  Result write(std::span<const std::byte> from, std::size_t& moved);
  // Says that nothing follows: the other end reads an orderly kClosed. Not with a write unfinished.
  Result close();

  // Why it kFailed or kClosed: the part of a sentence.
  const std::string& problem() const { return problem_; }

 private:
  template <typename Call>
  Result attempt(Call call);
  Result classify(int returned, int error);
  Result broken(int error);
  Result verified();
  void forget_key();
  Result end(Result result, std::string problem);
  bool ready();
  bool has_room() const;
  bool renew_key();

  const Tls& tls_;
  const std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  const int fd_;
  const std::uint32_t records_per_key_;
  std::uint32_t records_ = 0;  // written with the key in use
  bool unfinished_ = false;    // a write has to be offered again
  bool open_ = false;          // the handshake is done
  std::optional<Result> ended_;
  std::string problem_;
};

}  // namespace lockstep
