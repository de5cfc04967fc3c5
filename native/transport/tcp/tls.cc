#include "transport/tcp/tls.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "transport/tcp/openssl.h"

namespace lockstep {
namespace {

using namespace openssl;

constexpr char kIdentity[] = "lockstep";
constexpr std::size_t kReadBuffer = std::size_t{64} << 10;  // one read(2) brings several records

// OpenSSL asks for the key in callbacks that are given nothing of ours. It asks during a call of
// `handshake`, on its thread, so that is where the key is offered.
constinit thread_local std::span<const std::byte> offered;

// Where the records go that OpenSSL writes in a call on this thread.
constinit thread_local std::vector<std::byte>* sink = nullptr;

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

}  // namespace

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
          api_->free_context.pointer()),
      sink_(new_sink(*api_), api_->free_bio_method.pointer()) {
  if (!context_ || !configure())
    throw Error("lockstep: " + library + " cannot do TLS 1.3 with AES-128-GCM: " +
                api_->text_of(api_->take_error()) + ". Encrypted connections need it.");
}

Tls::~Tls() = default;

// OpenSSL writes as if there were always room; `Session::flush` sends what has come together.
BioMethod* Tls::new_sink(const OpenSsl& api) {
  const auto write = [](Bio*, const char* bytes, int count) {
    const auto* first = reinterpret_cast<const std::byte*>(bytes);
    sink->insert(sink->end(), first, first + count);
    return count;
  };
  const auto control = [](Bio*, int command, long, void*) -> long { return command == kBioFlush; };
  BioMethod* made = api.new_bio_method(kBioOfOurs, kIdentity);
  if (made == nullptr || api.set_bio_write(made, write) != 1 ||
      api.set_bio_control(made, control) != 1)
    throw Error("lockstep: OpenSSL has no memory for encrypted connections.");
  return made;
}

Tls::Offer::Offer(const Tls& tls) { offered = tls.key_.bytes(); }

Tls::Offer::~Offer() { offered = {}; }

Tls::Sink::Sink(std::vector<std::byte>& records) { sink = &records; }

Tls::Sink::~Sink() { sink = nullptr; }

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

std::unique_ptr<Session> Tls::open(int fd, Side side) const {
  return std::make_unique<Session>(*this, fd, side);
}

}  // namespace lockstep
