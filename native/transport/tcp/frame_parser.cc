#include "transport/tcp/frame_parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/companion.h"

namespace lockstep {
namespace {

// What may follow a frame that is no message.
std::size_t longest(std::uint32_t kind) {
  if (kind == Frame::kAbort) return Frame::kMaxAbortText;
  if (kind == Frame::kGreeting) return Companion::kMaxGreeting;
  return kind == Frame::kControl ? Frame::kMaxControlPart : 0;
}

}  // namespace

std::span<std::byte> FrameParser::room(Channels::Filling& filling) {
  if (have_ < sizeof(Frame))
    return {reinterpret_cast<std::byte*>(&frame_) + have_, sizeof(Frame) - have_};
  const std::size_t done = have_ - sizeof(Frame);
  const std::size_t header =
      connection_ == 0 ? std::min<std::size_t>(kSlotHeader, frame_.bytes) : 0;
  if (done < header) return {at_.header + done, header - done};
  if (at_.posted) at_.rest = channels_.posted_room(part(), filling);
  return {at_.rest + done - header, frame_.bytes - done};
}

Channels::Part FrameParser::part() const {
  const std::size_t header = connection_ == 0 ? kSlotHeader : 0;
  const std::size_t payload = std::size_t{frame_.bytes} - header + frame_.extra;
  return {{frame_.clique, frame_.index, process_}, frame_.number, connection_, payload};
}

void FrameParser::take(std::size_t bytes) {
  have_ += bytes;
  if (have_ == sizeof(Frame)) begin();
  if (have_ == sizeof(Frame) + frame_.bytes) {
    finish();
    have_ = 0;
    body_.clear();
  }
}

// A frame is there, and what follows it is yet to come.
void FrameParser::begin() {
  const bool greets = frame_.kind == Frame::kGreeting;
  if (greets != (process_ < 0)) throw Error("it does not speak as Lockstep does");
  if (!owner_.may_send(process_, frame_.kind)) throw Error("agents do not exchange such frames");
  at_ = {};
  const bool is_message = frame_.kind == Frame::kMessage;
  if (connection_ != 0 && !is_message && frame_.kind != Frame::kLeave)
    throw Error("a frame on a connection for stripes");
  if (is_message && connection_ == 0 && frame_.bytes < kSlotHeader)
    throw Error("a message without a header");
  if (is_message)
    at_ = channels_.room(part(), frame_.bytes);
  else if (frame_.bytes > longest(frame_.kind))
    throw Error("a frame that is too long");
  if (at_.header != nullptr) return;
  body_.resize(frame_.bytes);
  at_ = {body_.data(), body_.data() + std::min<std::size_t>(kSlotHeader, frame_.bytes)};
}

void FrameParser::finish() {
  switch (frame_.kind) {
    case Frame::kGreeting:
      process_ = owner_.greet(frame_, {at_.header, frame_.bytes});
      connection_ = frame_.connection();
      return;
    case Frame::kMessage:
      if (at_.header == body_.data())
        return channels_.keep(part().channel, frame_.number, std::move(body_));
      return channels_.arrived(part());
    case Frame::kRelease:
      return channels_.released(part().channel, frame_.number);
    case Frame::kAbort:
      return owner_.aborted({reinterpret_cast<const char*>(at_.header), frame_.bytes});
    case Frame::kLeave:
      has_left_ = true;
      return owner_.left(process_, connection_, frame_.clique);
    case Frame::kControl:
      return owner_.control(process_, frame_.clique, frame_.number, {at_.header, frame_.bytes});
    default:
      throw Error("a frame of a kind that is not known");
  }
}

}  // namespace lockstep
