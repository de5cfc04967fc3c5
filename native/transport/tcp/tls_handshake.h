// The handshake of a session of TLS: OpenSSL's, over the session's buffers (see tls.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/secret.h"
#include "transport/tcp/tls.h"

struct ssl_st;  // OpenSSL's SSL and BIO
struct bio_st;

namespace lockstep {

// Why a connection has ended, where the system says so: `error` as of socket_buffers.h.
struct ConnectionEnd {
  Session::Result result;
  std::string problem;
};
ConnectionEnd connection_end(int error);

class Tls::Handshake {
 public:
  // Throws Error. The buffers outlive it.
  Handshake(const Tls& tls, int fd, Side side, ReceiveBuffer& received, SendBuffer& unsent);
  ~Handshake();

  // Goes as far as it can. What it leaves in the send buffer is to go out in any case.
  Result step();
  // Why the last step returned kFailed or kClosed.
  const std::string& problem() const { return problem_; }
  // Whether the connection failed, and not what came over it.
  bool is_broken() const { return io_error_.has_value(); }
  // A second opinion on a handshake that is done. The settings of the context leave no other way
  // to complete one.
  bool has_proved_the_key() const;
  // The secrets of application data (RFC 8446, 7.1), to be taken once.
  SecretBytes take_client_secret() { return std::move(client_secret_); }
  SecretBytes take_server_secret() { return std::move(server_secret_); }

  // OpenSSL's callbacks. They serve the handshake whose step is running on their thread.
  static bio_method_st* new_wire(const OpenSsl& api);
  static unsigned client_key(ssl_st*, const char*, char* identity, unsigned room,
                             unsigned char* key, unsigned key_room);
  static unsigned server_key(ssl_st*, const char* identity, unsigned char* key, unsigned room);
  static void take_secret(const ssl_st*, const char* line);

 private:
  class Running;

  static int read(bio_st* wire, char* to, int room);
  static int write(bio_st* wire, const char* bytes, int count);
  unsigned copy_key(unsigned char* to, unsigned room) const;
  Result classify(int returned);
  Result end(Result result, std::string problem);

  static thread_local Handshake* running;

  const Tls& tls_;
  const int fd_;
  ReceiveBuffer& received_;
  SendBuffer& unsent_;
  const std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  // Allocated before OpenSSL calls back: no exception may leave a callback.
  SecretBytes client_secret_ = SecretBytes(records::kSecret);
  SecretBytes server_secret_ = SecretBytes(records::kSecret);
  bool has_client_secret_ = false, has_server_secret_ = false;
  std::optional<int> io_error_;  // there is nothing more to read, and why
  std::string problem_;
};

}  // namespace lockstep
