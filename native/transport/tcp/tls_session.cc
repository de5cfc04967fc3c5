// A session of TLS (see tls.h).
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "transport/tcp/openssl.h"
#include "transport/tcp/tls.h"

namespace lockstep {
namespace {

using namespace openssl;

constexpr std::size_t kRecord = std::size_t{16} << 10;  // the most that one holds

// A server sees it in the client's first message. The client is told: OpenSSL calls the parameter
// illegal, and RFC 8446 speaks of decryption.
bool shows_other_key(unsigned long error) {
  return is(error, kBinderDoesNotVerify) || is(error, kAlertIllegalParameter) ||
         is(error, kAlertDecryptError);
}

}  // namespace

Tls::Session::Session(const Tls& tls, int fd, Side side, std::uint32_t records_per_key)
    : tls_(tls),
      ssl_(tls.api_->new_session(tls.context_.get()), tls.api_->free_session.pointer()),
      fd_(fd),
      records_per_key_(records_per_key) {
  const OpenSsl& api = *tls_.api_;
  Bio* sink = ssl_ ? api.new_bio(tls_.sink_.get()) : nullptr;
  if (sink == nullptr || api.set_read_fd(ssl_.get(), fd) != 1)
    throw Error("lockstep: OpenSSL cannot begin an encrypted connection: " +
                api.text_of(api.take_error()) + ".");
  api.set_bio_ready(sink, 1);
  api.set_write_bio(ssl_.get(), sink);  // and owns it
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
  const Offer offer(tls_);
  const Result result = attempt([&] { return tls_.api_->handshake(ssl_.get()); });
  // What the other end is to read, or why this end gives up.
  const Result sent = flush();
  if (result != Result::kDone && result != Result::kWantsRead) return result;
  if (sent != Result::kDone) return sent;
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
  constexpr std::array<unsigned char, kMaxKeyBytes> kZeros{};
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
  // The other end may ask for a new key: the answer goes out when it can.
  if (accepted_ == 0 && !sealed_.empty()) flush();
  return result;
}

Tls::Result Tls::Session::write(std::span<const std::byte> head, std::span<const std::byte> body,
                                std::size_t& moved) {
  moved = 0;
  if (!ready()) return *ended_;
  if (accepted_ == 0) {
    const Result result = seal(head, body);
    if (result != Result::kDone) return result;
  }
  const Result result = flush();
  if (result == Result::kDone) moved = std::exchange(accepted_, 0);
  return result;
}

// Encrypts as much as goes out at once. The head and what fits of the body share a record.
Tls::Result Tls::Session::seal(std::span<const std::byte> head, std::span<const std::byte> body) {
  while (accepted_ < kBatch && !(head.empty() && body.empty())) {
    std::array<std::byte, kRecord> joined;
    std::span<const std::byte> record = body.first(std::min(body.size(), kRecord));
    if (!head.empty()) {
      const auto first = head.first(std::min(head.size(), kRecord));
      const auto second = body.first(std::min(body.size(), kRecord - first.size()));
      std::ranges::copy(second, std::ranges::copy(first, joined.begin()).out);
      record = std::span(joined).first(first.size() + second.size());
      head = head.subspan(first.size());
      body = body.subspan(second.size());
    } else {
      body = body.subspan(record.size());
    }
    std::size_t bytes = 0;
    if (!renew_key()) return *ended_;
    const Result result =
        attempt([&] { return tls_.api_->write(ssl_.get(), record.data(), record.size(), &bytes); });
    if (result != Result::kDone) return result;
    accepted_ += bytes;
    ++records_;
  }
  return Result::kDone;
}

// Sends the records that OpenSSL has written.
Tls::Result Tls::Session::flush() {
  while (sent_ < sealed_.size()) {
    const ssize_t n =
        send(fd_, sealed_.data() + sent_, sealed_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent_ += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      const int error = errno;
      if (error == EAGAIN) return Result::kWantsWrite;
      return ended_ ? *ended_ : broken(error, 0);
    }
  }
  sealed_.clear();
  sent_ = 0;
  return Result::kDone;
}

bool Tls::Session::renew_key() {
  if (records_ < records_per_key_) return true;
  records_ = 0;
  attempt([&] {
    if (tls_.api_->update_key(ssl_.get(), kUpdateNotRequested) != 1) return 0;
    return tls_.api_->handshake(ssl_.get());
  });
  return !ended_;
}

Tls::Result Tls::Session::close() {
  if (!ready()) return *ended_;
  // 0: sent, and the other end has not answered. It need not.
  const Result result = attempt([&] { return tls_.api_->shutdown(ssl_.get()) < 0 ? -1 : 1; });
  return result == Result::kDone ? flush() : result;
}

bool Tls::Session::ready() {
  if (!ended_ && !open_) end(Result::kFailed, "the connection was used before its handshake");
  return !ended_;
}

template <typename Call>
Tls::Result Tls::Session::attempt(Call call) {
  const Sink sink(sealed_);
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
      return broken(error, tls_.api_->take_error());
  }
}

// That the bytes ended is an error of the system's without a number in 1.1.1.
Tls::Result Tls::Session::broken(int error, unsigned long first) {
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
