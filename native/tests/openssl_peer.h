// OpenSSL itself at one end of a connection: its own records, and its own opinion of ours.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/secret.h"
#include "check.h"
#include "tls_wires.h"
#include "transport/tcp/openssl.h"
#include "transport/tcp/tls_records.h"

namespace lockstep::testing {

inline constexpr void* kNone = nullptr;

template <typename Value, typename... Arguments>
Value call(const char* name, Arguments... arguments) {
  static void* handle = dlopen(library(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = dlsym(handle, name);
  if (!symbol) throw CheckFailed(std::string("no symbol ") + name);
  return reinterpret_cast<Value (*)(Arguments...)>(symbol)(arguments...);
}

// The key and the name of `shared`.
inline unsigned right_key(void*, const char*, char* identity, unsigned, unsigned char* key,
                          unsigned) {
  const Bytes bytes = random_bytes(32, 1);
  std::ranges::copy("lockstep", identity);
  std::ranges::copy(bytes, reinterpret_cast<std::byte*>(key));
  return 32;
}

inline unsigned key_of_client(void*, const char*, unsigned char* key, unsigned) {
  char identity[16];
  return right_key(nullptr, nullptr, identity, 0, key, 0);
}

template <typename Bytes>
Bytes unhex(std::string_view digits) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(
        static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  return bytes;
}

// OpenSSL at one end of a connection. Its context is set before the first step of the handshake.
class OpenSslEnd {
 public:
  static constexpr int kMinVersion = 123, kMaxVersion = 124;

  OpenSslEnd(bool server, int fd)
      : server_(server),
        fd_(fd),
        context_(call<void*>("SSL_CTX_new", call<const void*>("TLS_method"))) {}
  ~OpenSslEnd() {
    if (ssl_) call<void>("SSL_free", ssl_);
    call<void>("SSL_CTX_free", context_);
  }
  OpenSslEnd(const OpenSslEnd&) = delete;
  OpenSslEnd& operator=(const OpenSslEnd&) = delete;

  void set(int command, long value) {
    CHECK_EQUAL(call<long>("SSL_CTX_ctrl", context_, command, value, kNone), 1);
  }
  int handshake() {
    if (!ssl_) {
      ssl_ = call<void*>("SSL_new", context_);
      call<int>("SSL_set_fd", ssl_, fd_);
      call<void>(server_ ? "SSL_set_accept_state" : "SSL_set_connect_state", ssl_);
    }
    call<void>("ERR_clear_error");
    return call<int>("SSL_do_handshake", ssl_);
  }

 protected:
  const bool server_;
  const int fd_;
  void* const context_;
  void* ssl_ = nullptr;
};

// A peer with the key, whose records can also be made by hand: `secret` is where they begin.
class OpenSslPeer : public OpenSslEnd {
 public:
  OpenSslPeer(bool server, int fd) : OpenSslEnd(server, fd) {
    set(kMinVersion, 0x0304);
    call<int>("SSL_CTX_set_ciphersuites", context_, "TLS_AES_128_GCM_SHA256");
    call<int>("SSL_CTX_set_num_tickets", context_, std::size_t{0});
    call<void>("SSL_CTX_set_psk_client_callback", context_, right_key);
    call<void>("SSL_CTX_set_psk_server_callback", context_, key_of_client);
    call<void>("SSL_CTX_set_keylog_callback", context_, take_line);
  }

  bool shake() {
    current = this;
    const bool done = tell(handshake()) == 1;
    current = nullptr;
    return done;
  }
  void write(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    std::size_t moved = 0;
    CHECK_EQUAL(tell(call<int>("SSL_write_ex", ssl_, bytes.data(), bytes.size(), &moved)), 1);
    CHECK_EQUAL(moved, bytes.size());
  }
  // What there is; `problem` says what came after it.
  std::string read() {
    std::string text;
    Bytes part(5000);
    std::size_t moved = 0;
    while (tell(call<int>("SSL_read_ex", ssl_, part.data(), part.size(), &moved)) == 1)
      text += shown({part.data(), moved});
    return text;
  }
  void take_new_key(bool ask_for_another) {
    CHECK_EQUAL(call<int>("SSL_key_update", ssl_, ask_for_another ? 1 : 0), 1);
    CHECK_EQUAL(tell(handshake()), 1);
  }
  void close() { CHECK_EQUAL(call<int>("SSL_shutdown", ssl_), 0); }

  // "": nothing more to read now; "closed"; or OpenSSL's reason.
  const std::string& problem() const { return problem_; }
  SecretBytes secret(bool of_server) const { return of_server ? server_secret_ : client_secret_; }
  SecretBytes own_secret() const { return secret(server_); }

 private:
  int tell(int returned) {
    problem_.clear();
    if (returned > 0) return returned;
    constexpr int kWantsRead = 2, kZeroReturn = 6;
    const int kind = call<int>("SSL_get_error", ssl_, returned);
    const unsigned long error = call<unsigned long>("ERR_get_error");
    if (kind == kZeroReturn) {
      problem_ = "closed";
    } else if (kind != kWantsRead) {
      const char* reason = call<const char*>("ERR_reason_error_string", error);
      problem_ = reason ? reason : "an error without a reason";
    }
    call<void>("ERR_clear_error");
    return returned;
  }
  static void take_line(const void*, const char* text) {
    const std::string_view line(text);
    for (const bool server : {false, true})
      if (line.starts_with(server ? "SERVER_TRAFFIC_SECRET_0" : "CLIENT_TRAFFIC_SECRET_0"))
        (server ? current->server_secret_ : current->client_secret_) =
            unhex<SecretBytes>(line.substr(line.rfind(' ') + 1));
  }
  static inline thread_local OpenSslPeer* current = nullptr;

  std::string problem_;
  SecretBytes client_secret_, server_secret_;
};

inline const OpenSsl& api() {
  static const OpenSsl functions{openssl::Library(library())};
  return functions;
}

inline Bytes sealed(records::Sealer& sealer, records::ContentType type,
                    std::span<const std::byte> content) {
  Bytes record(content.size() + records::kOverhead);
  CHECK_EQUAL(sealer.seal(type, {}, content, record.data()), record.size());
  return record;
}

// A session of ours and OpenSSL, in one thread, after the handshake.
struct Mixed {
  explicit Mixed(bool openssl_serves, std::uint32_t records_per_key = 1000000, int buffer = 0)
      : wire(local_wire(buffer)),
        session(shared(), wire.a->fd(), openssl_serves ? Side::kClient : Side::kServer,
                records_per_key),
        peer(openssl_serves, wire.b->fd()) {}
  void shake() {
    bool there = false;
    Result here = Result::kWantsRead;
    for (int i = 0; i < kRounds; ++i) {
      there = peer.shake() || there;
      here = session.handshake();
    }
    CHECK_EQUAL(session.problem() + peer.problem(), "");
    CHECK(there && here == Result::kDone);
  }

  Wire wire;  // the session is at `a`
  Tls::Session session;
  OpenSslPeer peer;
};

}  // namespace lockstep::testing
