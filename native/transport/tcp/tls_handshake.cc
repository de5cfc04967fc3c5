#include "transport/tcp/tls_handshake.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "transport/tcp/openssl.h"

namespace lockstep {
namespace {

using namespace openssl;

constexpr char kIdentity[] = "lockstep";

// A server sees it in the client's first message. The client is told: OpenSSL calls the parameter
// illegal, and RFC 8446 speaks of decryption.
bool shows_other_key(unsigned long error) {
  return is(error, kBinderDoesNotVerify) || is(error, kAlertIllegalParameter) ||
         is(error, kAlertDecryptError);
}

std::byte hexadecimal(char digit) {
  return static_cast<std::byte>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
}

// The last word of a line of the key log.
bool copy_secret(std::string_view line, SecretBytes& to) {
  const std::string_view digits = line.substr(line.rfind(' ') + 1);
  if (digits.size() != 2 * to.size()) return false;
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] = hexadecimal(digits[2 * i]) << 4 | hexadecimal(digits[2 * i + 1]);
  return true;
}

}  // namespace

ConnectionEnd connection_end(int error) {
  if (error == kEndOfStream)
    return {Session::Result::kClosed, "the connection ended without TLS's closing message"};
  const bool closed = error == ECONNRESET || error == EPIPE;
  return {closed ? Session::Result::kClosed : Session::Result::kFailed,
          std::generic_category().message(error)};
}

// OpenSSL's callbacks are given nothing of ours. They are called during a step, on its thread.
constinit thread_local Tls::Handshake* Tls::Handshake::running = nullptr;

class Tls::Handshake::Running {
 public:
  explicit Running(Handshake& handshake) { running = &handshake; }
  ~Running() { running = nullptr; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

Tls::Handshake::Handshake(const Tls& tls, int fd, Side side, ReceiveBuffer& received,
                          SendBuffer& unsent)
    : tls_(tls),
      fd_(fd),
      received_(received),
      unsent_(unsent),
      ssl_(tls.api_->new_session(tls.context_.get()), tls.api_->free_session) {
  const OpenSsl& api = *tls_.api_;
  Bio* wire = ssl_ ? api.new_bio(tls_.wire_.get()) : nullptr;
  if (wire == nullptr)
    throw Error("lockstep: OpenSSL cannot begin an encrypted connection: " +
                api.text_of(api.take_error()) + ".");
  api.set_bio_ready(wire, 1);
  api.set_bios(ssl_.get(), wire, wire);  // and owns it
  if (side == Side::kServer) {
    api.be_server(ssl_.get());
    return;
  }
  api.be_client(ssl_.get());
  // A server without the key would go on with a certificate. No certificate is good: none is known.
  api.set_verify(ssl_.get(), kVerifyPeer, nullptr);
}

Tls::Handshake::~Handshake() = default;

BioMethod* Tls::Handshake::new_wire(const OpenSsl& api) {
  const auto control = [](Bio*, int command, long, void*) -> long { return command == kBioFlush; };
  BioMethod* made = api.new_bio_method(kBioOfOurs, kIdentity);
  if (made == nullptr || api.set_bio_read(made, read) != 1 || api.set_bio_write(made, write) != 1 ||
      api.set_bio_control(made, control) != 1)
    throw Error("lockstep: OpenSSL has no memory for encrypted connections.");
  return made;
}

// OpenSSL reads the header of a record, then the rest, and nothing ahead: what follows the
// handshake stays in the session's buffer.
int Tls::Handshake::read(Bio* wire, char* to, int room) {
  Handshake& self = *running;
  const OpenSsl& api = *self.tls_.api_;
  api.clear_bio_flags(wire, kBioRetryFlags);
  if (self.received_.unread().empty()) {
    const int error = self.received_.fill(self.fd_);
    if (error == EAGAIN) {
      api.set_bio_flags(wire, kBioRetryRead);
      return -1;
    }
    if (error != 0) {
      self.io_error_ = error;
      return 0;
    }
  }
  const auto unread = self.received_.unread();
  const auto part = unread.first(std::min(unread.size(), static_cast<std::size_t>(room)));
  std::ranges::copy(part, reinterpret_cast<std::byte*>(to));
  self.received_.consume(part.size());
  return static_cast<int>(part.size());
}

// There is always room: a handshake with a pre-shared key takes less than a KiB.
int Tls::Handshake::write(Bio*, const char* bytes, int count) {
  SendBuffer& unsent = running->unsent_;
  const auto size = static_cast<std::size_t>(count);
  if (size > unsent.room().size()) return -1;
  std::memcpy(unsent.room().data(), bytes, size);
  unsent.add(size);
  return count;
}

unsigned Tls::Handshake::copy_key(unsigned char* to, unsigned room) const {
  const auto key = tls_.key_.bytes();
  if (key.size() > room) return 0;
  std::ranges::copy(key, reinterpret_cast<std::byte*>(to));
  return static_cast<unsigned>(key.size());
}

// 0 means no key. A client fails then; a server goes on without, as far as one can get that has no
// certificate either.
unsigned Tls::Handshake::client_key(Ssl*, const char*, char* identity, unsigned room,
                                    unsigned char* key, unsigned key_room) {
  if (room < sizeof(kIdentity)) return 0;
  std::ranges::copy(kIdentity, identity);
  return running->copy_key(key, key_room);
}

unsigned Tls::Handshake::server_key(Ssl*, const char* identity, unsigned char* key, unsigned room) {
  if (!identity || std::strcmp(identity, kIdentity) != 0) return 0;
  return running->copy_key(key, room);
}

// OpenSSL wipes the line afterwards.
void Tls::Handshake::take_secret(const Ssl*, const char* text) {
  const std::string_view line(text);
  if (line.starts_with("CLIENT_TRAFFIC_SECRET_0 "))
    running->has_client_secret_ = copy_secret(line, running->client_secret_);
  if (line.starts_with("SERVER_TRAFFIC_SECRET_0 "))
    running->has_server_secret_ = copy_secret(line, running->server_secret_);
}

Tls::Result Tls::Handshake::step() {
  const Running running_here(*this);
  tls_.api_->clear_errors();
  const int returned = tls_.api_->handshake(ssl_.get());
  return returned == 1 ? Result::kDone : classify(returned);
}

Tls::Result Tls::Handshake::classify(int returned) {
  const OpenSsl& api = *tls_.api_;
  const int kind = api.get_error(ssl_.get(), returned);
  const unsigned long first = api.take_error();
  if (kind == kErrorWantRead) return Result::kWantsRead;
  if (io_error_) {
    ConnectionEnd found = connection_end(*io_error_);
    return end(found.result, std::move(found.problem));
  }
  if (kind == kErrorZeroReturn) return end(Result::kClosed, "the other end closed the connection");
  std::string text = api.text_of(first);
  if (shows_other_key(first)) text = "the two ends do not have the same key (" + text + ")";
  return end(Result::kFailed, std::move(text));
}

Tls::Result Tls::Handshake::end(Result result, std::string problem) {
  problem_ = std::move(problem);
  return result;
}

bool Tls::Handshake::has_proved_the_key() const {
  const OpenSsl& api = *tls_.api_;
  return api.version(ssl_.get()) == kTls13 && api.used_psk(ssl_.get()) == 1 &&
         api.suite_number(api.suite(ssl_.get())) == kAes128GcmSha256 && has_client_secret_ &&
         has_server_secret_ && api.has_pending(ssl_.get()) == 0;
}

}  // namespace lockstep
