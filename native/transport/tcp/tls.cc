#include "transport/tcp/tls.h"

#include <algorithm>

#include "base/error.h"
#include "transport/tcp/openssl.h"
#include "transport/tcp/tls_handshake.h"

namespace lockstep {
using namespace openssl;

Tls::Secret::Secret(std::span<const std::byte> key) : size_(key.size()) {
  if (size_ < kMinKeyBytes || size_ > kMaxKeyBytes)
    throw Error("lockstep: the key for encrypted connections has " + std::to_string(size_) +
                " bytes. It must have " + std::to_string(kMinKeyBytes) + " to " +
                std::to_string(kMaxKeyBytes) + ", all of them random.");
  std::ranges::copy(key, bytes_.begin());
}

Tls::Secret::~Secret() { wipe(); }

void Tls::Secret::wipe() {
  explicit_bzero(bytes_.data(), bytes_.size());
  size_ = 0;
}

Tls::Tls(const std::string& library, std::span<const std::byte> key)
    : key_(key),
      api_(new OpenSsl{Library(library)}),
      // Threads may be in a session while the process exits, so nothing is cleaned up then.
      context_(
          api_->init(kInitNoAtexit, nullptr) == 1 ? api_->new_context(api_->method()) : nullptr,
          api_->free_context),
      wire_(Handshake::new_wire(*api_), api_->free_bio_method) {
  if (!context_ || !configure())
    throw Error("lockstep: " + library + " cannot do TLS 1.3 with AES-128-GCM: " +
                api_->text_of(api_->take_error()) + ". Encrypted connections need it.");
}

Tls::~Tls() = default;

// Whatever the system's openssl.cnf says is in the new context already: what matters is set here.
bool Tls::configure() const {
  Context* context = context_.get();
  api_->set(context, kSessionCache, 0, nullptr);
  // OpenSSL does not read ahead: what follows the handshake stays in the session's buffer.
  api_->set(context, kReadAhead, 0, nullptr);
  api_->clear_options(context, kAllowNoDhe);
  api_->set_key_log(context, Handshake::take_secret);
  api_->set_client_key(context, Handshake::client_key);
  api_->set_server_key(context, Handshake::server_key);
  return api_->set(context, kMinVersion, kTls13, nullptr) == 1 &&
         api_->set(context, kMaxVersion, kTls13, nullptr) == 1 &&
         api_->set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
         api_->set_tickets(context, 0) == 1;
}

std::unique_ptr<Session> Tls::open(int fd, Side side) const {
  return std::make_unique<Session>(*this, fd, side);
}

}  // namespace lockstep
