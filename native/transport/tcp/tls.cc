#include "transport/tcp/tls.h"

#include <dlfcn.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

// From OpenSSL's headers; the same in 1.1.1 and in all of 3.
constexpr std::uint64_t kInitNoAtexit = 0x80000;
constexpr int kMode = 33, kReadAhead = 41, kSessionCache = 44, kMinVersion = 123, kMaxVersion = 124;
constexpr int kTls13 = 0x0304;
constexpr long kPartialWrite = 1, kMovingWriteBuffer = 2;
constexpr unsigned long kIgnoreUnexpectedEof = 0x80, kAllowNoDhe = 0x400;
constexpr int kVerifyPeer = 1;
constexpr int kUpdateNotRequested = 0;
constexpr int kErrorWantRead = 2, kErrorWantWrite = 3, kErrorZeroReturn = 6;
constexpr unsigned long kLibrarySsl = 20;
constexpr unsigned long kBinderDoesNotVerify = 253, kUnexpectedEof = 294;
constexpr unsigned long kAlertIllegalParameter = 1047, kAlertDecryptError = 1051;

constexpr char kIdentity[] = "lockstep";
constexpr std::size_t kReadBuffer = std::size_t{256} << 10;  // one read(2) brings several records

using Ssl = ssl_st;
using Context = ssl_ctx_st;

// OpenSSL asks for the key in callbacks that are given nothing of ours. It asks during a call of
// `handshake`, on its thread, so that is where the key is offered.
constinit thread_local std::span<const std::byte> offered;

class Offer {
 public:
  explicit Offer(std::span<const std::byte> key) { offered = key; }
  ~Offer() { offered = {}; }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;
};

unsigned copy_key(unsigned char* to, unsigned room) {
  if (offered.size() > room) return 0;
  std::ranges::copy(offered, reinterpret_cast<std::byte*>(to));
  return static_cast<unsigned>(offered.size());
}

// 0 means no key. A client fails then; a server goes on without, as far as one can get that has no
// certificate either.
unsigned client_key(Ssl*, const char*, char* identity, unsigned room, unsigned char* key,
                    unsigned key_room) {
  if (room < sizeof(kIdentity)) return 0;
  std::ranges::copy(kIdentity, identity);
  return copy_key(key, key_room);
}

unsigned server_key(Ssl*, const char* identity, unsigned char* key, unsigned room) {
  if (!identity || std::strcmp(identity, kIdentity) != 0) return 0;
  return copy_key(key, room);
}

// The library stays open for good: it leaves something behind in each thread that has used it.
class Library {
 public:
  explicit Library(const std::string& name)
      : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_) return;
    throw Error(std::string("lockstep: OpenSSL could not be opened: ") + dlerror() +
                ". Encrypted connections need OpenSSL 1.1.1 or newer on every host: install it "
                "(Debian and Ubuntu: apt install openssl), or give the path of its libssl.");
  }
  void* symbol(const char* name) const {
    if (void* found = dlsym(handle_, name)) return found;
    throw Error("lockstep: " + name_ + " has no " + name +
                ", so it is not OpenSSL 1.1.1 or newer. Encrypted connections need that: give the "
                "path of its libssl.");
  }

 private:
  std::string name_;
  void* handle_;
};

template <typename Signature>
class Function;
template <typename Value, typename... Arguments>
class Function<Value(Arguments...)> {
 public:
  Function(const Library& library, const char* name)
      : call_(reinterpret_cast<Value (*)(Arguments...)>(library.symbol(name))) {}
  Value operator()(Arguments... arguments) const { return call_(arguments...); }
  auto pointer() const { return call_; }

 private:
  Value (*call_)(Arguments...);
};

// The library is in bits 23 to 30 of an error in OpenSSL 3 and in bits 24 to 31 in 1.1.1.
bool is(unsigned long error, unsigned long reason) {
  return (error & 0xfff) == reason && (error >> 23 == kLibrarySsl || error >> 24 == kLibrarySsl);
}

// A server sees it in the client's first message. The client is told: OpenSSL calls the parameter
// illegal, and RFC 8446 speaks of decryption.
bool shows_other_key(unsigned long error) {
  return is(error, kBinderDoesNotVerify) || is(error, kAlertIllegalParameter) ||
         is(error, kAlertDecryptError);
}

}  // namespace

struct Tls::Api {
  Library library;

  Function<int(std::uint64_t, const void*)> init{library, "OPENSSL_init_ssl"};
  Function<const void*()> method{library, "TLS_method"};
  Function<Context*(const void*)> new_context{library, "SSL_CTX_new"};
  Function<void(Context*)> free_context{library, "SSL_CTX_free"};
  Function<long(Context*, int, long, void*)> set{library, "SSL_CTX_ctrl"};
  Function<unsigned long(Context*, unsigned long)> clear_options{library, "SSL_CTX_clear_options"};
  Function<int(Context*, const char*)> set_ciphersuites{library, "SSL_CTX_set_ciphersuites"};
  Function<int(Context*, std::size_t)> set_tickets{library, "SSL_CTX_set_num_tickets"};
  Function<void(Context*, std::size_t)> set_read_buffer{library,
                                                        "SSL_CTX_set_default_read_buffer_len"};
  Function<void(Context*, decltype(&client_key))> set_client_key{library,
                                                                 "SSL_CTX_set_psk_client_callback"};
  Function<void(Context*, decltype(&server_key))> set_server_key{library,
                                                                 "SSL_CTX_set_psk_server_callback"};
  Function<Ssl*(Context*)> new_session{library, "SSL_new"};
  Function<void(Ssl*)> free_session{library, "SSL_free"};
  Function<int(Ssl*, int)> set_fd{library, "SSL_set_fd"};
  Function<void(Ssl*, int, void*)> set_verify{library, "SSL_set_verify"};
  Function<void(Ssl*)> be_client{library, "SSL_set_connect_state"};
  Function<void(Ssl*)> be_server{library, "SSL_set_accept_state"};
  Function<int(Ssl*)> handshake{library, "SSL_do_handshake"};
  Function<int(Ssl*, void*, std::size_t, std::size_t*)> read{library, "SSL_read_ex"};
  Function<int(Ssl*, const void*, std::size_t, std::size_t*)> write{library, "SSL_write_ex"};
  Function<int(Ssl*, int)> update_key{library, "SSL_key_update"};
  Function<int(Ssl*)> shutdown{library, "SSL_shutdown"};
  Function<int(Ssl*)> version{library, "SSL_version"};
  Function<int(Ssl*)> used_psk{library, "SSL_session_reused"};  // a PSK counts as a session
  Function<void*(const Ssl*)> session{library, "SSL_get_session"};
  Function<int(void*, const unsigned char*, std::size_t)> set_master_key{
      library, "SSL_SESSION_set1_master_key"};
  Function<int(Ssl*, int)> get_error{library, "SSL_get_error"};
  Function<void()> clear_errors{library, "ERR_clear_error"};
  Function<unsigned long()> next_error{library, "ERR_get_error"};
  Function<const char*(unsigned long)> reason{library, "ERR_reason_error_string"};

  // The first error of this thread, or 0. Leaves none: Python's ssl module looks there as well.
  unsigned long take_error() const {
    const unsigned long first = next_error();
    clear_errors();
    return first;
  }
  std::string text_of(unsigned long error) const {
    const char* text = reason(error);
    return text ? text : "error " + std::to_string(error) + " of OpenSSL";
  }
};

Tls::Secret::Secret(std::span<const std::byte> key) : size_(key.size()) {
  if (size_ < kShortestKey || size_ > kLongestKey)
    throw Error("lockstep: the key for encrypted connections has " + std::to_string(size_) +
                " bytes. It must have " + std::to_string(kShortestKey) + " to " +
                std::to_string(kLongestKey) + ", all of them random.");
  std::ranges::copy(key, bytes_.begin());
}

Tls::Secret::~Secret() { wipe(); }

void Tls::Secret::wipe() {
  explicit_bzero(bytes_.data(), bytes_.size());
  size_ = 0;
}

Tls::Tls(const std::string& library, std::span<const std::byte> key)
    : key_(key),
      api_(new Api{Library(library)}),
      // Threads may be in a session while the process exits, so nothing is cleaned up then.
      context_(
          api_->init(kInitNoAtexit, nullptr) == 1 ? api_->new_context(api_->method()) : nullptr,
          api_->free_context.pointer()) {
  if (!context_ || !configure())
    throw Error("lockstep: " + library + " cannot do TLS 1.3 with AES-128-GCM: " +
                api_->text_of(api_->take_error()) + ". Encrypted connections need it.");
}

Tls::~Tls() = default;

// Whatever the system's openssl.cnf says is in the new context already: what matters is set here.
bool Tls::configure() const {
  Context* context = context_.get();
  api_->set(context, kMode, kPartialWrite | kMovingWriteBuffer, nullptr);
  api_->set(context, kSessionCache, 0, nullptr);
  api_->set(context, kReadAhead, 1, nullptr);
  api_->set_read_buffer(context, kReadBuffer);
  api_->clear_options(context, kAllowNoDhe | kIgnoreUnexpectedEof);
  api_->set_client_key(context, client_key);
  api_->set_server_key(context, server_key);
  return api_->set(context, kMinVersion, kTls13, nullptr) == 1 &&
         api_->set(context, kMaxVersion, kTls13, nullptr) == 1 &&
         api_->set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
         api_->set_tickets(context, 0) == 1;
}

Tls::Session::Session(const Tls& tls, int fd, Side side, std::uint32_t records_per_key)
    : tls_(tls),
      ssl_(tls.api_->new_session(tls.context_.get()), tls.api_->free_session.pointer()),
      fd_(fd),
      records_per_key_(records_per_key) {
  const Api& api = *tls_.api_;
  if (!ssl_ || api.set_fd(ssl_.get(), fd) != 1)
    throw Error("lockstep: OpenSSL cannot begin an encrypted connection: " +
                api.text_of(api.take_error()) + ".");
  if (side == Side::kServer) {
    api.be_server(ssl_.get());
    return;
  }
  api.be_client(ssl_.get());
  // A server without the key would go on with a certificate. No certificate is good: none is known.
  api.set_verify(ssl_.get(), kVerifyPeer, nullptr);
}

Tls::Session::~Session() = default;

Tls::Result Tls::Session::handshake() {
  if (ended_) return *ended_;
  if (open_) return Result::kDone;
  const Offer offer(tls_.key_.bytes());
  const Result result = attempt([&] { return tls_.api_->handshake(ssl_.get()); });
  return result == Result::kDone ? verified() : result;
}

// A second opinion: the settings of the context leave no other way to complete a handshake.
Tls::Result Tls::Session::verified() {
  if (tls_.api_->version(ssl_.get()) != kTls13 || tls_.api_->used_psk(ssl_.get()) != 1)
    return end(Result::kFailed, "the other end did not prove that it knows the key");
  forget_key();
  open_ = true;
  return Result::kDone;
}

// OpenSSL keeps the key in the session, for a resumption that does not take place.
void Tls::Session::forget_key() {
  constexpr std::array<unsigned char, kLongestKey> kZeros{};
  void* session = tls_.api_->session(ssl_.get());
  if (session != nullptr)
    tls_.api_->set_master_key(session, kZeros.data(), tls_.key_.bytes().size());
}

Tls::Result Tls::Session::read(std::span<std::byte> to, std::size_t& moved) {
  moved = 0;
  if (!ready()) return *ended_;
  if (to.empty()) return Result::kDone;
  std::size_t bytes = 0;
  const Result result =
      attempt([&] { return tls_.api_->read(ssl_.get(), to.data(), to.size(), &bytes); });
  if (result == Result::kDone) moved = bytes;
  return result;
}

Tls::Result Tls::Session::write(std::span<const std::byte> from, std::size_t& moved) {
  moved = 0;
  if (!ready() || !renew_key()) return *ended_;
  if (from.empty()) return Result::kDone;
  std::size_t bytes = 0;
  const Result result =
      attempt([&] { return tls_.api_->write(ssl_.get(), from.data(), from.size(), &bytes); });
  unfinished_ = result == Result::kWantsRead || result == Result::kWantsWrite;
  if (result != Result::kDone) return result;
  moved = bytes;
  ++records_;  // a partial write is one record
  return result;
}

// OpenSSL reads nothing while it has not got rid of a message about a new key. Two ends that both
// wait with one, for room that only the other's reading makes, would wait forever. So such a
// message is made only where there is room for it. False when the session has ended.
bool Tls::Session::renew_key() {
  if (records_ < records_per_key_ || unfinished_ || !has_room()) return true;
  records_ = 0;
  attempt([&] {
    if (tls_.api_->update_key(ssl_.get(), kUpdateNotRequested) != 1) return 0;
    return tls_.api_->handshake(ssl_.get());
  });
  return !ended_;
}

bool Tls::Session::has_room() const {
  pollfd descriptor{fd_, POLLOUT, 0};
  return poll(&descriptor, 1, 0) == 1 && descriptor.revents == POLLOUT;
}

Tls::Result Tls::Session::close() {
  if (!ready()) return *ended_;
  // 0: sent, and the other end has not answered. It need not.
  return attempt([&] { return tls_.api_->shutdown(ssl_.get()) < 0 ? -1 : 1; });
}

bool Tls::Session::ready() {
  if (!ended_ && !open_) end(Result::kFailed, "the connection was used before its handshake");
  return !ended_;
}

template <typename Call>
Tls::Result Tls::Session::attempt(Call call) {
  tls_.api_->clear_errors();
  errno = 0;
  const int returned = call();
  const int error = errno;
  return returned > 0 ? Result::kDone : classify(returned, error);
}

Tls::Result Tls::Session::classify(int returned, int error) {
  switch (tls_.api_->get_error(ssl_.get(), returned)) {
    case kErrorWantRead:
      return Result::kWantsRead;
    case kErrorWantWrite:
      return Result::kWantsWrite;
    case kErrorZeroReturn:
      return end(Result::kClosed, "the other end closed the connection");
    default:
      return broken(error);
  }
}

// That the bytes ended is an error of the system's without a number in 1.1.1.
Tls::Result Tls::Session::broken(int error) {
  const unsigned long first = tls_.api_->take_error();
  if (is(first, kUnexpectedEof) || (first == 0 && error == 0))
    return end(Result::kClosed, "the connection ended without TLS's closing message");
  const bool closed = error == ECONNRESET || error == EPIPE;
  if (first == 0)
    return end(closed ? Result::kClosed : Result::kFailed, std::generic_category().message(error));
  std::string text = tls_.api_->text_of(first);
  if (!open_ && shows_other_key(first))
    text = "the two ends do not have the same key (" + text + ")";
  return end(Result::kFailed, std::move(text));
}

Tls::Result Tls::Session::end(Result result, std::string problem) {
  ended_ = result;
  problem_ = std::move(problem);
  return result;
}

}  // namespace lockstep
