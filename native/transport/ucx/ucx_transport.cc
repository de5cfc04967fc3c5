#include "transport/ucx/ucx_transport.h"

#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr unsigned kActiveMessage = 0;  // UCX's number of our kind of messages
// How long what has been sent may take to go out, and then to be received, when the program has
// ended: others may be stopped, or wait for a core.
constexpr std::chrono::seconds kFlushTime{10};
constexpr std::chrono::seconds kReceiveTime{10};
constexpr std::chrono::milliseconds kPollInterval{1};
// When the job has failed, what is being sent may take this long to go out.
constexpr std::chrono::milliseconds kSendGrace{1000};
// A sender makes UCX progress all the time at first, and then now and then.
constexpr std::chrono::microseconds kSendSpin{200}, kSendInterval{50};
constexpr int kClosingProgress = 100;

}  // namespace

// One end of a channel.
class UcxTransport::Channel : public SendChannel, public ReceiveChannel {
 public:
  Channel(UcxTransport& transport, const ChannelId& id) : transport_(transport), id_(id) {}

  void post_send(std::uint32_t number, const Message& message, const WaitLimits* limits) override {
    transport_.post(id_, kMessage, number, &message, limits);
  }
  void post_release(std::uint32_t number, const WaitLimits* limits) override {
    // The writer fills the rest of its slots meanwhile.
    if (++unreported_ < kReportEvery) return;
    unreported_ = 0;
    transport_.post(id_, kRelease, number, nullptr, limits);
  }

 private:
  // Less than a ring has slots, so that its writer always gets one.
  static constexpr std::uint32_t kReportEvery = 2;

  UcxTransport& transport_;
  const ChannelId id_;
  std::uint32_t unreported_ = 0;
};

UcxTransport::UcxTransport(const std::vector<std::string>& libraries, int listener, int process,
                           const std::vector<std::string>& labels, Arena& arena,
                           double timeout_seconds, const WakeUp& wake_up)
    : process_(process),
      labels_(labels),
      arena_(arena),
      timeout_seconds_(timeout_seconds),
      wake_up_(wake_up),
      library_(libraries),
      peers_(labels.size()),
      refusals_(labels[static_cast<std::size_t>(process)]),
      devices_(ucp::choose_devices(library_, listener)),
      worker_(library_, labels.size(), devices_.chosen) {
  if (getrandom(&secret_, sizeof(secret_), 0) != sizeof(secret_))
    throw Error("lockstep: the system gives no random numbers.");
  if (worker_.max_header() < sizeof(Header) + kSlotHeader)
    throw Error("lockstep: the transports of UCX that were chosen take headers of " +
                std::to_string(worker_.max_header()) + " bytes at most, and the engine needs " +
                std::to_string(sizeof(Header) + kSlotHeader) +
                ". Choose others (UCX_TLS), or use --transport tcp.");
  for (std::size_t i = 0; i < peers_.size(); ++i)
    peers_[i].owner = this, peers_[i].process = static_cast<int>(i);
  ucp::HandlerParam handler{};
  handler.field_mask = ucp::HandlerParam::kId | ucp::HandlerParam::kFlags |
                       ucp::HandlerParam::kCallback | ucp::HandlerParam::kArgument;
  handler.id = kActiveMessage;
  handler.flags = ucp::HandlerParam::kWholeMessage;
  handler.callback = on_message;
  handler.argument = this;
  library_.check(library_.set_handler(worker_.get(), &handler), "take messages");
}

// When a job has failed, messages and connections of UCX may be half done. UCX then asserts in
// ucp_worker_destroy that there are none, and ends the process. So it keeps what it has.
UcxTransport::~UcxTransport() {
  stop();
  if (getpid() != owner_) return;
  if (arena_.aborted() || !close_all()) worker_.abandon();
  for (Outgoing* outgoing : free_) delete outgoing;
}

// Whether no message is in flight any more.
bool UcxTransport::close_all() {
  const UcxWorker::Lock lock(worker_);
  for (Peer& peer : peers_) close(peer);
  // Most sends and receives end here.
  for (int i = 0; i < kClosingProgress; ++i) library_.worker_progress(worker_.get());
  return std::ranges::none_of(
      peers_, [](const Peer& peer) { return peer.unsent != 0 || peer.unfetched != 0; });
}

void UcxTransport::close(Peer& to) {
  if (to.ep == nullptr) return;
  ucp::RequestParam force{};
  force.op_attr_mask = ucp::RequestParam::kFlags;
  force.flags = ucp::RequestParam::kForce;
  const ucp::StatusPointer request = library_.ep_close(to.ep, &force);
  if (request != nullptr && !ucp::is_error(request)) library_.request_free(request);
  to.ep = nullptr;
}

std::size_t UcxTransport::refused() {
  const UcxWorker::Lock lock(worker_);
  return refusals_.total();
}

void UcxTransport::start(Peers& peers, Transport& memory) {
  network_ = &peers;
  memory_ = &memory;
  worker_.start([this] { check(); });
}

std::unique_ptr<SendChannel> UcxTransport::open(const ChannelId& id, const SendRing& ring) {
  network_->reach(id.process, own_limits());
  channels_.open(id, ring);
  return std::make_unique<Channel>(*this, id);
}

std::unique_ptr<ReceiveChannel> UcxTransport::open(const ChannelId& id, const ReceiveRing& ring) {
  network_->reach(id.process, own_limits());
  channels_.open(id, ring);
  return std::make_unique<Channel>(*this, id);
}

class UcxTransport::Receiver : public WaitingWork {
 public:
  explicit Receiver(UcxWorker& worker) : worker_(worker) {}
  void poll() override { worker_.try_progress(); }
  bool wait(Clock::duration) override { return false; }

 private:
  UcxWorker& worker_;
};

WaitResult UcxTransport::wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                              std::size_t bytes) {
  if (bytes > kReceivesItself || getpid() != owner_) return wait_until(counter, target, limits);
  Receiver receiver(worker_);
  return wait_until(counter, target, limits, &receiver);
}

std::vector<std::byte> UcxTransport::greeting() {
  const UcxWorker::Lock lock(worker_);
  const auto secret = std::as_bytes(std::span(&secret_, 1));
  std::vector<std::byte> bytes(secret.begin(), secret.end());
  const std::vector<std::byte> address = worker_.address();
  bytes.insert(bytes.end(), address.begin(), address.end());
  if (bytes.size() > kMaxGreeting)
    throw Error("lockstep: UCX's address of this process has " + std::to_string(address.size()) +
                " bytes, which is too many. Choose fewer devices (UCX_NET_DEVICES, UCX_TLS).");
  return bytes;
}

void UcxTransport::greeted(int process, std::span<const std::byte> greeting) {
  if (greeting.size() <= sizeof(Secret))
    throw Error(
        "it sends over TCP what this process sends over UCX: LOCKSTEP_TRANSPORT has to be the same "
        "for all processes");
  const UcxWorker::Lock lock(worker_);
  std::memcpy(&peer(process).secret, greeting.data(), sizeof(Secret));
  const auto address = greeting.subspan(sizeof(Secret));
  peer(process).address.assign(address.begin(), address.end());
}

void UcxTransport::post(const ChannelId& id, Kind kind, std::uint32_t number,
                        const Message* message, const WaitLimits* limits) {
  if (getpid() != owner_)
    throw Error("lockstep: a forked child cannot take part in the collectives of its parent.");
  Peer& to = peer(id.process);
  if (to.left.load(std::memory_order_acquire) != 0) return;
  Outgoing* outgoing = nullptr;
  {
    const UcxWorker::Lock lock(worker_);
    if (stopped_) throw Error("lockstep: the job has ended in this process.");
    Header header{.kind = kind,
                  .process = static_cast<std::uint32_t>(process_),
                  .clique = id.clique,
                  .ring = id.ring,
                  .number = number};
    if (to.broken == ucp::kOk) outgoing = send(to, header, message);
    if (to.broken == ucp::kOk && outgoing == nullptr) return;
  }
  if (outgoing != nullptr) return await(to, outgoing, limits == nullptr ? own_limits() : *limits);
  give_up(to);
}

// Returns when the memory of the message may be used again. When that takes too long, UCX has to
// close the connection for it, as TCP does.
void UcxTransport::await(Peer& to, Outgoing* outgoing, const WaitLimits& limits) {
  const auto start = Clock::now();
  auto cut = Clock::time_point::max();
  bool late = false;
  std::string in_flight;
  for (;;) {
    const auto now = Clock::now();
    if (limits.abort->load(std::memory_order_acquire) != 0) cut = std::min(cut, now + kSendGrace);
    {
      const UcxWorker::Lock lock(worker_);
      worker_.progress();
      if (!outgoing->is_done && (limits.deadline.passed() || now >= cut)) {
        late = to.broken == ucp::kOk;
        in_flight = flight_of(to);
        close(to);
        break_off(to, ucp::kCanceled);
        for (int i = 0; i < kClosingProgress && !outgoing->is_done; ++i) worker_.progress();
      }
      if (outgoing->is_done) {
        free_.push_back(outgoing);
        if (to.broken == ucp::kOk) return;
        break;
      }
    }
    if (limits.wake_up != nullptr && now >= start + kLongWait) limits.wake_up->notify();
    if (now < start + kSendSpin)
      sched_yield();
    else
      std::this_thread::sleep_for(kSendInterval);
  }
  if (late && !arena_.aborted()) throw Error(late_text(to, in_flight));
  give_up(to);
}

UcxTransport::Outgoing* UcxTransport::send(Peer& to, const Header& header, const Message* message) {
  ucp::Ep* ep = connect(to);
  if (ep == nullptr) return nullptr;
  if (free_.empty()) free_.push_back(new Outgoing);
  Outgoing* outgoing = free_.back();
  free_.pop_back();
  outgoing->header = header;
  outgoing->header.secret = to.secret;
  outgoing->owner = this;
  outgoing->process = to.process;
  outgoing->is_awaited = message != nullptr;
  outgoing->is_done = false;
  std::size_t header_bytes = sizeof(Header);
  std::span<const std::byte> rest;
  if (message != nullptr) {
    rest = message->rest;
    outgoing->header.bytes = static_cast<std::uint32_t>(rest.size());
    std::memcpy(outgoing->slot_header, message->header.data(), kSlotHeader);
    header_bytes = offsetof(Outgoing, slot_header) + kSlotHeader;
  }
  ucp::RequestParam param{};
  param.op_attr_mask = ucp::RequestParam::kCallback | ucp::RequestParam::kUserData;
  param.callback.sent = on_sent;
  param.user_data = outgoing;
  if (header.kind != kAllReceived) ++to.sent;
  const ucp::StatusPointer request = library_.send(ep, kActiveMessage, &outgoing->header,
                                                   header_bytes, rest.data(), rest.size(), &param);
  if (request != nullptr && !ucp::is_error(request)) {
    ++to.unsent;
    worker_.wake();
    return outgoing->is_awaited ? outgoing : nullptr;
  }
  free_.push_back(outgoing);
  if (request != nullptr) break_off(to, ucp::error_of(request));
  return nullptr;
}

ucp::Ep* UcxTransport::connect(Peer& to) {
  if (to.ep != nullptr || to.broken != ucp::kOk) return to.ep;
  ucp::EpParams param{};
  param.field_mask =
      ucp::EpParams::kAddress | ucp::EpParams::kErrorMode | ucp::EpParams::kErrorHandler;
  param.address = to.address.data();
  param.err_mode = ucp::EpParams::kPeerFailure;
  param.error_handler = {on_error, &to};
  const ucp::Status status = library_.ep_create(worker_.get(), &param, &to.ep);
  if (status == ucp::kOk) return to.ep;
  to.ep = nullptr;
  break_off(to, status);
  return nullptr;
}

void UcxTransport::break_off(Peer& from, ucp::Status status) {
  if (from.broken != ucp::kOk) return;
  from.broken = status;
  from.broken_since = Clock::now();
}

void UcxTransport::on_sent(void* request, ucp::Status status, void* argument) {
  auto* outgoing = static_cast<Outgoing*>(argument);
  UcxTransport& self = *outgoing->owner;
  --self.peer(outgoing->process).unsent;
  if (status != ucp::kOk) self.break_off(self.peer(outgoing->process), status);
  outgoing->is_done = true;
  if (!outgoing->is_awaited) self.free_.push_back(outgoing);
  self.library_.request_free(request);
}

void UcxTransport::on_error(void* argument, ucp::Ep* ep, ucp::Status status) {
  Peer& from = *static_cast<Peer*>(argument);
  UcxTransport& self = *from.owner;
  self.break_off(from, status);
  if (from.ep == ep) self.close(from);
}

void UcxTransport::flush() {
  if (getpid() != owner_) return;
  worker_.flush(Clock::now() + kFlushTime, arena_.header().abort_state);
}

std::uint64_t UcxTransport::sent_to(int process) {
  const UcxWorker::Lock lock(worker_);
  return peer(process).sent;
}

void UcxTransport::left(int process, std::uint64_t sent) {
  const UcxWorker::Lock lock(worker_);
  peer(process).sent_in_all = sent;
  see_whether_it_has_left(peer(process));
}

bool UcxTransport::all_is_received() {
  const UcxWorker::Lock lock(worker_);
  for (const Peer& each : peers_)
    if (each.sent != 0 && !each.has_all && each.broken == ucp::kOk && each.left.load() == 0 &&
        network_->has_left(each.process).load() == 0 && !network_->is_lost(each.process))
      return false;
  return true;
}

void UcxTransport::stop() {
  if (getpid() != owner_) return;
  {
    const UcxWorker::Lock lock(worker_);
    if (std::exchange(stopped_, true)) return;
  }
  const auto end = Clock::now() + kReceiveTime;
  while (network_ != nullptr && !arena_.aborted() && Clock::now() < end && !all_is_received())
    std::this_thread::sleep_for(kPollInterval);
  worker_.stop();
}

}  // namespace lockstep
