// The connections that other processes open: see progress_thread.h.
#include <sys/epoll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "control/network/progress_thread.h"
#include "transport/tcp/unencrypted.h"

namespace lockstep {
namespace {

using Result = Session::Result;

}  // namespace

void ProgressThread::accept_some() {
  for (Descriptor& fd : acceptor_.accept_some()) {
    evict_oldest_unauthenticated();
    auto made = std::make_unique<Incoming>(std::move(fd), FrameParser(*this, channels_));
    try {
      made->session = security_.open(made->fd.get(), Security::Side::kServer);
      if (watch_input(epoll_.get(), made->fd.get(), made.get()))
        incoming_.push_back(std::move(made));
    } catch (const Error& error) {
      refuse(*made, error.what());
    }
  }
}

// The oldest has had the most time to show that it has the key. A process of the job whose
// connection is evicted tries again.
void ProgressThread::evict_oldest_unauthenticated() {
  const auto is_unauthenticated = [](const auto& one) { return !one->authenticated; };
  const auto limit = kMaxUnauthenticated + roster_.num_expected();
  if (std::ranges::count_if(incoming_, is_unauthenticated) < limit) return;
  end(**std::ranges::find_if(incoming_, is_unauthenticated),
      "too many have connected and not shown that they have the job's key, and it is the oldest");
}

// Reads all that is there; the rest comes with the next event.
void ProgressThread::advance(Incoming& incoming) {
  try {
    if (!authenticate(incoming)) return;
    while (!over_ && read_some(incoming)) {
    }
  } catch (const Error& error) {
    end(incoming, error.what());
  }
}

bool ProgressThread::authenticate(Incoming& incoming) {
  if (incoming.authenticated) return true;
  const Result result = incoming.session->handshake();
  if (result == Result::kWantsRead || result == Result::kWantsWrite) return false;
  if (result != Result::kDone)
    throw Error("it has not shown that it has the job's key (" + incoming.session->problem() + ")");
  return incoming.authenticated = true;
}

// False when there is nothing more to read now.
bool ProgressThread::read_some(Incoming& incoming) {
  const bool greets = incoming.frames.process() < 0;
  if (!incoming.read()) return false;
  if (!greets || incoming.frames.process() < 0) return true;
  welcome(incoming);
  if (roster_.is_deferred(incoming.frames.process())) deferred_.greeted(incoming.frames.process());
  if (incoming.frames.connection() == 0) return true;
  hand_over(incoming);
  return false;
}

// Gives a connection to the thread that reads stripes.
void ProgressThread::hand_over(Incoming& incoming) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, incoming.fd.get(), nullptr);
  const auto found =
      std::ranges::find_if(incoming_, [&](const auto& one) { return one.get() == &incoming; });
  std::unique_ptr<Incoming> taken = std::move(*found);
  incoming_.erase(found);
  stripe_readers_.add(std::move(taken));
}

int ProgressThread::greet(const Frame& frame, std::span<const std::byte> rest) {
  return roster_.admit(frame, [&](int process) {
    // The process may end before it can say so in another frame.
    if ((frame.number & Frame::kHasLeft) != 0) set_left(process, 0);
    if (is_agent(process) || is_agent(process_)) return;
    if (frame.connection() != 0) return;
    if (companion_ != nullptr) return companion_->greeted(process, rest);
    if (!rest.empty())
      throw Error(
          "it sends over UCX what this process sends over TCP: LOCKSTEP_TRANSPORT has to be the "
          "same for all processes");
  });
}

// An agent takes no part in collectives and cannot fail the job: the processes detect failures
// themselves, and what an agent takes for a failure may be none of the job's.
bool ProgressThread::may_send(int process, std::uint32_t kind) const {
  if (kind == Frame::kAbort) return !is_agent(process);
  const bool of_channel = kind == Frame::kMessage || kind == Frame::kRelease;
  return !of_channel || !(is_agent(process) || is_agent(process_));
}

void ProgressThread::welcome(Incoming& incoming) {
  answer(incoming, Frame::kWelcome, {});
  // The other end sends nothing before it has the answer.
  if (!security_.encrypts())
    incoming.session = std::make_unique<UnencryptedSession>(incoming.fd.get());
}

// A frame and a short text: a connection on which nothing was sent before has room for them.
void ProgressThread::answer(Incoming& incoming, std::uint32_t kind, std::string_view text) {
  const Frame frame{.kind = kind,
                    .index = static_cast<std::uint32_t>(process_),
                    .clique = nonce_,
                    .number = Frame::kVersion | (program_ended_ ? Frame::kHasLeft : 0),
                    .bytes = static_cast<std::uint32_t>(text.size()),
                    .to = static_cast<std::uint32_t>(incoming.frames.process()),
                    .extra = machine_number()};
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
  bytes += text;
  std::size_t moved = 0;
  const Result result = incoming.session->write(std::as_bytes(std::span(bytes)), moved);
  if (result != Result::kDone || moved != bytes.size()) throw Error("it takes no answer");
}

void ProgressThread::end(Incoming& incoming, const std::string& why) {
  const int process = incoming.frames.process();
  if (process >= 0 && incoming.session->was_changed()) changed(process, why);
  if (process < 0) {
    refuse(incoming, why);
  } else if (incoming.frames.connection() != 0) {
    ended(process, why);
  } else {
    control_.forget(process);
    // The other connections may say a moment later that it has left. So may another process of this
    // host where the connection has just been made by a process that ends.
    const bool is_over = over_ || incoming.frames.has_left();
    if (!is_over && roster_.is_deferred(process))
      ended(process, why);
    else if (!is_over)
      failures_.lose(process, why);
  }
  // Closing is not enough while a forked child keeps the connection open.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, incoming.fd.get(), nullptr);
  std::erase_if(incoming_, [&](const auto& one) { return one.get() == &incoming; });
}

void ProgressThread::refuse(Incoming& incoming, const std::string& why) {
  if (over_) return;
  try {
    if (incoming.authenticated)
      answer(incoming, Frame::kRefusal, std::string_view(why).substr(0, kMaxReason));
  } catch (const Error&) {  // it has gone
  }
  refusals_.add("refused a connection from " + incoming.address, why);
}

void ProgressThread::drop_late() {
  const auto latest = Clock::now() - greeting_timeout_;
  for (std::size_t i = incoming_.size(); i-- > 0;)
    if (incoming_[i]->frames.process() < 0 && incoming_[i]->since < latest)
      end(*incoming_[i], incoming_[i]->authenticated
                             ? "it has not said in time which process it is"
                             : "it has not shown in time that it has the job's key");
}

}  // namespace lockstep
