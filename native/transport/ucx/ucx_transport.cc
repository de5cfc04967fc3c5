#include "transport/ucx/ucx_transport.h"

#include <sys/random.h>

#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {
namespace {

constexpr unsigned kActiveMessage = 0;  // UCX's number of our kind of messages
// How long what has been sent may take to go out, or to be received, when the program has ended.
constexpr std::chrono::seconds kFlushTime{10};
constexpr std::chrono::seconds kReceiveTime{2};
// How long the endpoint may take to tell why a connection of UCX is broken.
constexpr std::chrono::milliseconds kBrokenGrace{2000};
constexpr std::chrono::milliseconds kPollInterval{1};
constexpr int kClosingProgress = 100;

}  // namespace

// Of a channel, one end.
class UcxTransport::Channel : public SendChannel, public ReceiveChannel {
 public:
  Channel(UcxTransport& transport, const ChannelId& id) : transport_(transport), id_(id) {}

  void post_send(std::uint32_t number, const Message& message, const Watch*) override {
    transport_.post(id_, kMessage, number, &message);
  }
  void post_release(std::uint32_t number, const Watch*) override {
    // The writer fills the rest of its slots meanwhile.
    if (++unreported_ < kReportEvery) return;
    unreported_ = 0;
    transport_.post(id_, kRelease, number, nullptr);
  }

 private:
  // Less than a ring has slots, so that its writer always gets one.
  static constexpr std::uint32_t kReportEvery = 2;

  UcxTransport& transport_;
  const ChannelId id_;
  std::uint32_t unreported_ = 0;
};

UcxTransport::UcxTransport(const std::vector<std::string>& libraries, int process,
                           const std::vector<std::string>& labels, Arena& arena)
    : process_(process),
      labels_(labels),
      arena_(arena),
      library_(libraries),
      peers_(labels.size()),
      worker_(library_, labels.size()) {
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

// Sends that are not done yet end with the worker.
UcxTransport::~UcxTransport() {
  stop();
  if (getpid() != owner_) return;
  close();
  for (Outgoing* outgoing : free_) delete outgoing;
}

void UcxTransport::close() {
  const UcxWorker::Lock lock(worker_);
  for (Peer& peer : peers_) close(peer);
  // Sends and receives that were under way end here.
  for (int i = 0; i < kClosingProgress; ++i) library_.worker_progress(worker_.get());
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
  return refused_;
}

void UcxTransport::start(Endpoint& endpoint, TcpTransport& tcp) {
  endpoint_ = &endpoint;
  tcp_ = &tcp;
  worker_.start([this] { check(); });
}

std::unique_ptr<SendChannel> UcxTransport::open(const ChannelId& id, const SendRing& ring) {
  channels_.open(id, ring);
  return std::make_unique<Channel>(*this, id);
}

std::unique_ptr<ReceiveChannel> UcxTransport::open(const ChannelId& id, const ReceiveRing& ring) {
  channels_.open(id, ring);
  return std::make_unique<Channel>(*this, id);
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

// A message that cannot be sent at once is sent by the progress thread: it stays in its slot until
// the reader has released it.
void UcxTransport::post(const ChannelId& id, Kind kind, std::uint32_t number,
                        const Message* message) {
  if (getpid() != owner_)
    throw Error("lockstep: a forked child cannot take part in the collectives of its parent.");
  Peer& to = peer(id.process);
  if (to.left.load(std::memory_order_acquire) != 0) return;
  {
    const UcxWorker::Lock lock(worker_);
    if (stopped_) throw Error("lockstep: the job has ended in this process.");
    Header header{.kind = kind,
                  .process = static_cast<std::uint32_t>(process_),
                  .clique = id.clique,
                  .ring = id.ring,
                  .number = number};
    if (to.broken == ucp::kOk) send(to, header, message);
    if (to.broken == ucp::kOk) return;
  }
  give_up(to);
}

void UcxTransport::send(Peer& to, const Header& header, const Message* message) {
  ucp::Ep* ep = connect(to);
  if (ep == nullptr) return;
  if (free_.empty()) free_.push_back(new Outgoing);
  Outgoing* outgoing = free_.back();
  free_.pop_back();
  outgoing->header = header;
  outgoing->header.secret = to.secret;
  outgoing->owner = this;
  outgoing->process = to.process;
  std::size_t header_bytes = sizeof(Header);
  std::span<const std::byte> rest;
  if (message != nullptr) {
    rest = message->rest;
    outgoing->header.at = static_cast<std::uint32_t>(message->at);
    outgoing->header.bytes = static_cast<std::uint32_t>(rest.size());
    std::memcpy(outgoing->slot_header, message->header.data(), kSlotHeader);
    header_bytes = offsetof(Outgoing, slot_header) + kSlotHeader;
  }
  ucp::RequestParam param{};
  param.op_attr_mask = ucp::RequestParam::kCallback | ucp::RequestParam::kUserData;
  param.callback.sent = on_sent;
  param.user_data = outgoing;
  if (header.kind != kAllReceived) ++to.sent;
  const ucp::StatusPointer request =
      library_.send(ep, kActiveMessage, &outgoing->header, header_bytes, rest.data(), rest.size(),
                    &param);
  if (request != nullptr && !ucp::is_error(request)) return worker_.wake();
  free_.push_back(outgoing);
  if (request != nullptr) break_off(to, ucp::error_of(request));
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
  if (status != ucp::kOk) self.break_off(self.peer(outgoing->process), status);
  self.free_.push_back(outgoing);
  self.library_.request_free(request);
}

void UcxTransport::on_error(void* argument, ucp::Ep* ep, ucp::Status status) {
  Peer& from = *static_cast<Peer*>(argument);
  UcxTransport& self = *from.owner;
  self.break_off(from, status);
  if (from.ep == ep) self.close(from);
}

// Returns if the process has left: it needs nothing any more. The endpoint learns of that, or of
// why the process has ended, perhaps a moment later.
void UcxTransport::give_up(Peer& to) {
  const auto end = Clock::now() + kBrokenGrace;
  while (Clock::now() < end && !arena_.aborted()) {
    if (to.left.load(std::memory_order_acquire) != 0) return;
    if (endpoint_->has_left(to.process).load(std::memory_order_acquire) != 0) return;
    std::this_thread::sleep_for(kPollInterval);
  }
  if (arena_.aborted()) throw Error(arena_.abort_text());
  throw Error(broken_text(to));
}

std::string UcxTransport::broken_text(const Peer& from) const {
  return "lockstep: the UCX connection from " + labels_[static_cast<std::size_t>(process_)] +
         " to " + labels_[static_cast<std::size_t>(from.process)] + " is broken: " +
         library_.text_of(from.broken) +
         ". The process has ended, or the network between the hosts that UCX uses is down "
         "(UCX_NET_DEVICES and UCX_TLS choose it); --transport tcp does without UCX.";
}

// For the progress thread: what a callback has found, and connections that stay broken.
void UcxTransport::check() {
  std::string text;
  {
    const UcxWorker::Lock lock(worker_);
    text = failure_;
    for (const Peer& each : peers_)
      if (text.empty() && each.broken != ucp::kOk && each.left.load() == 0 && !stopped_ &&
          Clock::now() > each.broken_since + kBrokenGrace)
        text = broken_text(each);
  }
  if (!text.empty() && !arena_.aborted()) arena_.abort(text);
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
        endpoint_->has_left(each.process).load() == 0)
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
  while (endpoint_ != nullptr && !arena_.aborted() && Clock::now() < end && !all_is_received())
    std::this_thread::sleep_for(kPollInterval);
  worker_.stop();
}

}  // namespace lockstep
