// What an endpoint of UCX says when messages do not come, and when the progress thread fails the
// job for it.
#include <thread>

#include "base/error.h"
#include "transport/ucx/ucx_transport.h"

namespace lockstep {
namespace {

// How long the network may take to report why a connection of UCX is broken.
constexpr std::chrono::milliseconds kBrokenGrace{2000};
constexpr std::chrono::milliseconds kNewsInterval{1};
// How many checks of the progress thread may find nothing new from a process that has left. Checks
// are counted, not time: this process may be stopped meanwhile.
constexpr int kChecksWithoutNews = 50;

constexpr const char* kHint =
    "the network between the hosts that UCX uses is down (UCX_NET_DEVICES and UCX_TLS choose it); "
    "--transport tcp does without UCX.";

}  // namespace

// Returns if the process has left: it needs nothing any more. The network learns of that, or of
// why the process has ended, perhaps a moment later.
void UcxTransport::give_up(Peer& to) {
  const auto end = Clock::now() + kBrokenGrace;
  while (Clock::now() < end && !arena_.aborted()) {
    if (to.left.load(std::memory_order_acquire) != 0) return;
    if (network_->has_left(to.process).load(std::memory_order_acquire) != 0) return;
    std::this_thread::sleep_for(kNewsInterval);
  }
  if (arena_.aborted()) throw Error(arena_.abort_text());
  throw Error(broken_text(to));
}

std::string UcxTransport::late_text(const Peer& to, const std::string& in_flight) const {
  return "lockstep: " + label(to.process) + " has not taken all of what " + label(process_) +
         " sent until the deadline." + in_flight +
         " --collective-timeout (LOCKSTEP_COLLECTIVE_TIMEOUT) sets the limit; 0 means none.";
}

std::string UcxTransport::broken_text(const Peer& from) const {
  return "lockstep: the UCX connection from " + label(process_) + " to " + label(from.process) +
         " is broken: " + library_.text_of(from.broken) + ". The process has ended, or " + kHint;
}

std::string UcxTransport::lost_text(const Peer& from) const {
  return "lockstep: " + label(from.process) + " has ended, and of its " +
         std::to_string(*from.sent_in_all) + " messages to " + label(process_) + " over UCX, " +
         std::to_string(*from.sent_in_all - from.received) + " do not come. Perhaps " + kHint;
}

std::string UcxTransport::in_flight(int process) {
  const UcxWorker::Lock lock(worker_);
  return flight_of(peer(process));
}

std::string UcxTransport::flight_of(const Peer& other) const {
  return " Over UCX, " + std::to_string(other.received) + " messages have come from it, and " +
         std::to_string(other.unfetched) + " are being fetched; of " + std::to_string(other.sent) +
         " to it, " + std::to_string(other.unsent) + " are still being sent.";
}

// Why the messages of that process are given up; "" while they are not.
std::string UcxTransport::failure_of(Peer& from) {
  if (stopped_ || from.left.load() != 0) return {};
  if (from.broken != ucp::kOk)
    return Clock::now() > from.broken_since + kBrokenGrace ? broken_text(from) : "";
  if (!from.sent_in_all) return {};
  from.checks = from.received == from.checked ? from.checks + 1 : 0;
  from.checked = from.received;
  return from.checks > kChecksWithoutNews ? lost_text(from) : "";
}

// The progress thread looks here for what a callback has found, connections that stay broken, and
// messages that do not come.
void UcxTransport::check() {
  std::string text;
  {
    const UcxWorker::Lock lock(worker_);
    refusals_.report_due();
    text = failure_;
    for (Peer& each : peers_)
      if (text.empty()) text = failure_of(each);
  }
  if (!text.empty() && !arena_.aborted()) arena_.abort(text);
}

}  // namespace lockstep
