// The transport to processes of other hosts over UCX: InfiniBand, RoCE, TCP.
//
// The messages of the channels are UCX's active messages: small ones come with their header, of
// large ones UCX fetches the bytes into the slot (rendezvous). Connections of UCX are made when the
// first message goes to a process. The network (control/network) authenticates the processes
// and carries everything else; what each process needs to reach the others goes with its greeting:
// the address of its worker, and a secret, without which it takes no message. UCX does not encrypt.
//
// UCX and the network keep no order between them. So a process that leaves reports over the
// network how many messages it has sent, and counts here as left when all of them are there. It
// closes its connections when the others have said that they have them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/refusal_log.h"
#include "transport/companion.h"
#include "transport/peers.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"
#include "transport/ucx/devices.h"
#include "transport/ucx/library.h"
#include "transport/ucx/ucx_channels.h"
#include "transport/ucx/worker.h"

namespace lockstep {

class UcxTransport : public Transport, public Companion {
 public:
  // `libraries`: see ucp::Library; `listener`: see ucp::choose_devices; `labels`: of the processes.
  // A send without limits of its own waits `timeout_seconds`, and notifies `wake_up` when that
  // takes long. The references outlive this.
  UcxTransport(const std::vector<std::string>& libraries, int listener, int process,
               const std::vector<std::string>& labels, Arena& arena, double timeout_seconds,
               const WakeUp& wake_up);
  ~UcxTransport();

  // The network has met its peers of the start. `memory` allocates the copies of rings.
  void start(Peers& peers, Transport& memory);

  std::byte* allocate_copy(std::size_t bytes) override { return memory_->allocate_copy(bytes); }
  std::unique_ptr<SendChannel> open(const ChannelId& id, const SendRing& ring) override;
  std::unique_ptr<ReceiveChannel> open(const ChannelId& id, const ReceiveRing& ring) override;
  WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                  std::size_t bytes) override;
  std::string in_flight(int process) override;
  const std::atomic<std::uint32_t>* has_left(int process) const override {
    return &peer(process).left;
  }

  std::vector<std::byte> greeting() override;
  void greeted(int process, std::span<const std::byte> greeting) override;
  void flush() override;
  std::uint64_t sent_to(int process) override;
  void left(int process, std::uint64_t sent) override;
  void stop() override;

  // About the choice of devices, for the user; "": none.
  const std::string& warning() const { return devices_.warning; }

  // How many messages were dropped because they came from no process of the job.
  std::size_t refused();

 private:
  // A rank receives the messages of collectives of up to so many bytes itself, which saves the
  // wake-up of two threads. In larger ones a process sends and receives at the same time.
  static constexpr std::size_t kReceivesItself = 64 << 10;

  class Channel;
  class Receiver;
  struct Incoming;
  struct Secret {
    std::uint64_t words[2] = {};
    bool operator==(const Secret&) const = default;
  };
  enum Kind : std::uint32_t { kMessage = 1, kRelease, kAllReceived };
  struct Header {
    Secret secret{};  // of the receiver
    std::uint32_t kind = 0;
    std::uint32_t process = 0;  // the sender
    std::uint64_t clique = 0;
    std::uint32_t ring = 0;
    std::uint32_t number = 0;
    std::uint32_t bytes = 0;  // that follow the slot's header
    std::uint32_t unused = 0;
  };
  // A header that UCX may still read, and behind it the slot's. A sender waits until its message
  // is `done`; a release goes by itself.
  struct Outgoing {
    Header header;
    std::byte slot_header[kSlotHeader];
    UcxTransport* owner;
    int process;
    bool is_awaited, is_done;
  };
  struct Peer {
    UcxTransport* owner = nullptr;
    int process = -1;
    std::vector<std::byte> address;
    Secret secret{};
    ucp::Ep* ep = nullptr;
    std::uint64_t sent = 0, received = 0;
    std::uint64_t unsent = 0;                  // of those sent: UCX still sends them
    std::uint64_t unfetched = 0;               // besides those received: UCX fetches their bytes
    std::optional<std::uint64_t> sent_in_all;  // by it, when it has left
    std::uint64_t checked = 0;                 // how many were received by the last check
    int checks = 0;                            // that have found no more, since it has left
    bool has_all = false;                      // of what this process has sent, when it has left
    ucp::Status broken = ucp::kOk;             // why nothing can be sent any more
    Clock::time_point broken_since;
    std::atomic<std::uint32_t> left{0};
  };

  Peer& peer(int process) { return peers_[static_cast<std::size_t>(process)]; }
  const Peer& peer(int process) const { return peers_[static_cast<std::size_t>(process)]; }
  const std::string& label(int process) const { return labels_[static_cast<std::size_t>(process)]; }

  void post(const ChannelId& id, Kind kind, std::uint32_t number, const Message* message,
            const WaitLimits* limits);
  void await(Peer& peer, Outgoing* outgoing, const WaitLimits& limits);
  WaitLimits own_limits() const {
    return {&arena_.header().abort_state, Deadline(timeout_seconds_), {}, &wake_up_};
  }
  // The rest is under the worker's lock.
  // What is not done yet; null: it is done, or the connection is broken.
  Outgoing* send(Peer& peer, const Header& header, const Message* message);
  ucp::Ep* connect(Peer& peer);
  void break_off(Peer& peer, ucp::Status status);
  void close(Peer& peer);
  ucp::Status take(const std::byte* header, std::size_t header_bytes, void* data, std::size_t bytes,
                   bool is_rendezvous);
  ucp::Status take_message(Peer& peer, const Header& header, const std::byte* slot_header,
                           void* data, bool is_rendezvous);
  ucp::Status fetch(std::unique_ptr<Incoming> incoming, void* data, std::byte* to,
                    std::size_t bytes);
  void finish(Incoming& incoming);
  void fail(const Peer& from, const std::exception& error);
  void count(Peer& peer);
  void see_whether_it_has_left(Peer& peer);

  bool close_all();
  void give_up(Peer& peer);
  std::string late_text(const Peer& peer, const std::string& in_flight) const;
  std::string flight_of(const Peer& peer) const;  // under the lock
  std::string broken_text(const Peer& peer) const;
  std::string lost_text(const Peer& peer) const;
  std::string failure_of(Peer& peer);
  void check();
  bool all_is_received();

  static void on_sent(void* request, ucp::Status status, void* outgoing);
  static void on_fetched(void* request, ucp::Status status, std::size_t bytes, void* incoming);
  static void on_error(void* peer, ucp::Ep* ep, ucp::Status status);
  static ucp::Status on_message(void* self, const void* header, std::size_t header_bytes,
                                void* data, std::size_t bytes, const ucp::ReceiveParam* param);

  const pid_t owner_ = getpid();
  const int process_;
  const std::vector<std::string>& labels_;
  Arena& arena_;
  const double timeout_seconds_;
  const WakeUp& wake_up_;
  const ucp::Library library_;
  Peers* network_ = nullptr;
  Transport* memory_ = nullptr;
  Secret secret_;
  std::deque<Peer> peers_;
  UcxChannels channels_;
  std::vector<Outgoing*> free_;
  std::string failure_;  // a peer has broken the rules
  RefusalLog refusals_;
  bool stopped_ = false;
  const ucp::Devices devices_;
  UcxWorker worker_;
};

}  // namespace lockstep
