// A session of TLS (see tls.h).
#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "transport/tcp/openssl.h"
#include "transport/tcp/tls.h"
#include "transport/tcp/tls_handshake.h"

namespace lockstep {
namespace {

using records::Alert;
using records::ContentType;
using records::RecordError;

// RFC 8446, section 6.
constexpr std::byte kWarning{1}, kFatal{2};

// Section 4.6.3. Whether the other end wants this one to take a new key, too.
enum class UpdateRequest : std::uint8_t { kNotRequested = 0, kRequested = 1 };
constexpr std::byte kKeyUpdate[] = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}};

// Short enough to need no memory of its own.
constexpr const char* kNoMemory = "out of memory";

}  // namespace

Tls::Session::Session(const Tls& tls, int fd, Side side, std::uint32_t records_per_key)
    : tls_(tls),
      fd_(fd),
      side_(side),
      records_per_key_(records_per_key),
      handshake_(std::make_unique<Handshake>(tls, fd, side, received_, unsent_)) {}

Tls::Session::~Session() = default;

Tls::Result Tls::Session::handshake() {
  if (ended_) return *ended_;
  if (!handshake_) return Result::kDone;
  const Result result = handshake_->step();
  // What the other end is to read, or why this end gives up.
  const Result sent = flush();
  if (result == Result::kClosed || result == Result::kFailed) {
    was_changed_ = result == Result::kFailed && !handshake_->is_broken();
    return end(result, handshake_->problem());
  }
  if (sent != Result::kDone) return sent;
  return result == Result::kDone ? hand_over() : result;
}

// From here on OpenSSL's object is not needed.
Tls::Result Tls::Session::hand_over() {
  if (!handshake_->has_proved_the_key())
    return end(Result::kFailed, "the other end did not prove that it knows the key");
  SecretBytes ours = handshake_->take_client_secret(), theirs = handshake_->take_server_secret();
  if (side_ == Side::kServer) std::swap(ours, theirs);
  try {
    sealer_.emplace(*tls_.api_, std::move(ours));
    opener_.emplace(*tls_.api_, std::move(theirs));
  } catch (const RecordError& error) {
    return end(Result::kFailed, error.what());
  }
  handshake_.reset();
  return Result::kDone;
}

Tls::Result Tls::Session::read(std::span<std::byte> to, std::size_t& moved) {
  moved = 0;
  if (!ready()) return *ended_;
  Result result = Result::kDone;
  try {
    while (moved < to.size() && result == Result::kDone && !ended_) {
      if (!content_.empty())
        moved += take_content(to.subspan(moved));
      else if (const std::size_t record = whole_record(); record > 0)
        moved += open_record(record, to.subspan(moved));
      else
        result = moved > 0 ? Result::kWantsRead : receive();
    }
    if (!ended_) send_answer();
  } catch (const RecordError& error) {
    fail(error);
  } catch (const std::bad_alloc&) {
    return end(Result::kFailed, kNoMemory);
  }
  if (moved > 0) return Result::kDone;  // what has ended after them is for the next call
  return ended_ ? *ended_ : result;
}

std::size_t Tls::Session::take_content(std::span<std::byte> to) {
  const auto part = content_.first(std::min(content_.size(), to.size()));
  std::ranges::copy(part, to.begin());
  content_ = content_.subspan(part.size());
  return part.size();
}

// 0: it is not all there yet.
std::size_t Tls::Session::whole_record() const {
  const auto unread = received_.unread();
  const std::size_t record = records::record_bytes(unread);
  return record <= unread.size() ? record : 0;
}

// After a call that has taken all there was, the next one would be in vain.
Tls::Result Tls::Session::receive() {
  if (std::exchange(is_drained_, false)) return Result::kWantsRead;
  const int error = received_.fill(fd_);
  is_drained_ = error == 0 && !received_.is_full();
  if (error == 0) return Result::kDone;
  if (error == EAGAIN) return Result::kWantsRead;
  ConnectionEnd found = connection_end(error);
  return end(found.result, std::move(found.problem));
}

// Straight to where the content is to be, if there is room for all of it. Otherwise it is opened
// where it is. Returns how many bytes are in `to`.
std::size_t Tls::Session::open_record(std::size_t bytes, std::span<std::byte> to) {
  const std::span<std::byte> record = received_.unread().first(bytes);
  const bool fits = records::content_room(bytes) <= to.size();
  const auto [type, content] =
      opener_->open(record, fits ? to.data() : record.data() + records::kHeader);
  received_.consume(bytes);
  idle_records_ = type == ContentType::kApplicationData && !content.empty() ? 0 : idle_records_ + 1;
  if (idle_records_ > kMaxIdleRecords)
    throw RecordError(Alert::kUnexpectedMessage, "too many records without data");
  switch (type) {
    case ContentType::kApplicationData:
      if (fits) return content.size();
      content_ = content;
      return 0;
    case ContentType::kAlert:
      take_alert(content);
      return 0;
    case ContentType::kHandshake:
      take_key_update(content);
      return 0;
  }
  throw RecordError(Alert::kUnexpectedMessage, "a record with an unexpected type of content");
}

void Tls::Session::take_alert(std::span<const std::byte> content) {
  if (content.size() != 2) throw RecordError(Alert::kDecodeError, "an alert of another length");
  const auto alert = static_cast<Alert>(content[1]);
  if (alert == Alert::kUserCanceled) return;  // section 6.1: the closing message follows
  if (alert == Alert::kCloseNotify)
    end(Result::kClosed, "the other end closed the connection");
  else
    end(Result::kFailed, std::string("the other end reports: ") +
                             tls_.api_->alert_text(std::to_integer<int>(content[1])));
}

// The one message that may follow the handshake: OpenSSL was told to send no tickets, and asks for
// no certificate. It comes whole in one record, and ends it, since it changes the key
// (section 5.1).
void Tls::Session::take_key_update(std::span<const std::byte> content) {
  if (content.size() != sizeof(kKeyUpdate) + 1 ||
      !std::ranges::equal(content.first(sizeof(kKeyUpdate)), kKeyUpdate))
    throw RecordError(Alert::kUnexpectedMessage, "an unexpected message of a handshake");
  const auto request = static_cast<UpdateRequest>(content.back());
  if (request != UpdateRequest::kNotRequested && request != UpdateRequest::kRequested)
    throw RecordError(Alert::kIllegalParameter, "a message about a new key with a wrong value");
  opener_->update();
  has_to_answer_ = has_to_answer_ || request == UpdateRequest::kRequested;
}

// The other end has asked for a new key: the answer goes out when it can, behind a write that is
// unfinished. One answers any number of requests.
// The next read or write finds out that nothing goes out any more: records may be here to be read.
void Tls::Session::send_answer() {
  if (unsent_.flush(fd_) != 0 || !has_to_answer_ || is_closed_) return;
  seal_key_update();
  unsent_.flush(fd_);
}

Tls::Result Tls::Session::write(std::span<const std::byte> head, std::span<const std::byte> body,
                                std::size_t& moved) {
  moved = 0;
  if (!ready()) return *ended_;
  if (is_closed_) return end(Result::kFailed, "the connection was used after it was closed");
  try {
    if (accepted_ == 0) seal_batch(head, body);
  } catch (const RecordError& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return end(Result::kFailed, kNoMemory);
  }
  const Result result = flush();
  if (result == Result::kDone) moved = std::exchange(accepted_, 0);
  return result;
}

// Encrypts as much as goes out at once. The head and what fits of the body share a record, unless
// the body has records of its own.
void Tls::Session::seal_batch(std::span<const std::byte> head, std::span<const std::byte> body) {
  const bool apart = body.size() >= kOwnRecords;
  while (accepted_ < kBatch && !(head.empty() && body.empty())) {
    const auto first = head.first(std::min(head.size(), records::kMaxContent));
    const std::size_t room = apart && !first.empty() ? 0 : records::kMaxContent - first.size();
    const auto second = body.first(std::min(body.size(), room));
    if (has_to_answer_ || sealer_->sequence() >= records_per_key_) seal_key_update();
    seal_record(ContentType::kApplicationData, first, second);
    head = head.subspan(first.size());
    body = body.subspan(second.size());
    accepted_ += first.size() + second.size();
  }
}

void Tls::Session::seal_record(ContentType type, std::span<const std::byte> head,
                               std::span<const std::byte> body) {
  if (unsent_.room().size() < head.size() + body.size() + records::kOverhead)
    throw RecordError(Alert::kInternalError, "records without room");
  unsent_.add(sealer_->seal(type, head, body, unsent_.room().data()));
}

void Tls::Session::seal_key_update() {
  std::array<std::byte, sizeof(kKeyUpdate) + 1> message;
  std::ranges::copy(kKeyUpdate, message.begin());
  message.back() = static_cast<std::byte>(UpdateRequest::kNotRequested);
  seal_record(ContentType::kHandshake, message);
  sealer_->update();
  has_to_answer_ = false;
}

void Tls::Session::seal_alert(std::byte level, Alert alert) {
  const std::byte message[] = {level, static_cast<std::byte>(alert)};
  seal_record(ContentType::kAlert, message);
}

Tls::Result Tls::Session::flush() {
  const int error = unsent_.flush(fd_);
  if (error == 0) return Result::kDone;
  if (error == EAGAIN) return Result::kWantsWrite;
  if (ended_) return *ended_;
  ConnectionEnd found = connection_end(error);
  return end(found.result, std::move(found.problem));
}

Tls::Result Tls::Session::close() {
  if (!ready()) return *ended_;
  try {
    if (!std::exchange(is_closed_, true)) seal_alert(kWarning, Alert::kCloseNotify);
  } catch (const RecordError& error) {
    return end(Result::kFailed, error.what());
  }
  return flush();
}

bool Tls::Session::ready() {
  if (!ended_ && handshake_) end(Result::kFailed, "the connection was used before its handshake");
  return !ended_;
}

// Tells the other end why, as far as it takes it now. Not with a key that OpenSSL has failed with.
Tls::Result Tls::Session::fail(const RecordError& error) {
  end(Result::kFailed, error.what());
  was_changed_ = dynamic_cast<const records::ChangedRecord*>(&error) != nullptr;
  if (is_closed_ || error.alert == Alert::kInternalError) return *ended_;
  try {
    seal_alert(kFatal, error.alert);
    flush();
  } catch (const RecordError&) {  // there is no way to tell it
  }
  return *ended_;
}

Tls::Result Tls::Session::end(Result result, std::string problem) {
  ended_ = result;
  problem_ = std::move(problem);
  return result;
}

}  // namespace lockstep
