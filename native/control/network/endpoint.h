// Frames to and from the processes of other hosts, over TCP with TLS 1.3.
//
// A process opens one connection to a process of another host, for what it sends there, and takes
// one from it: a connection carries frames in one direction. With a few it does so at the start,
// with the others before the first message (mesh.h). A thread that sends writes the frame itself,
// under the send lock of the connection. One thread (`ProgressThread`) reads everything that comes.
// If the options say so, there are further connections, which carry stripes of large messages
// (stripes.h), with threads of their own (`SenderThreads`, `StripeReaders`).
//
// Messages belong to channels, each of one clique, from one process to one other. A channel ends in
// a ring of slots that the receiver owns (a ReceiveRing): message n goes into slot n modulo their
// number. The receiver reports each slot that it has released; until then the sender keeps the next
// message. So the progress thread always has room, never waits, and no channel holds up another
// one.
//
// Control messages, of one watchdog to another, belong to no channel: beyond a bound they are
// dropped.
//
// Agents are members of the endpoint's network and not of the job: each host has one that takes and
// sends control messages, also when the job has failed and when the processes of its host are dead.
// Agents have no connections between each other, and no data goes to or from an agent. It cannot
// fail the job: not by abort, nor by breaking a rule, nor by its end.
//
// Only peers with the job's key complete the handshake, and only one greeting of each process is
// accepted, and answered. A connection that ends before that answer is tried again: unauthenticated
// peers may have used all places. When all pairs have met, the port is closed. A peer that breaks
// the protocol is refused (before its greeting was accepted; the job goes on), or fails the job.
// Every number that comes is checked.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/futex_wait.h"
#include "base/secret.h"
#include "control/messages.h"
#include "control/network/background_threads.h"
#include "control/network/network.h"
#include "control/network/progress_thread.h"
#include "transport/companion.h"
#include "transport/shm/segment.h"
#include "transport/tcp/channel_io.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/session.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/stripes.h"

namespace lockstep {

// The addresses of the other hosts. Without addresses the job has one host only.
struct EndpointOptions {
  std::vector<std::string> addresses;  // of each process, "10.0.0.1:4411"; "" on this host
  int num_agents = 0;                  // the last ones of these are not processes, but agents
  std::vector<int> pids;               // of the others of this host, else 0; may be empty
  int listener = -1;                   // a listening socket of this process; duplicated
  SecretBytes key;                     // that all processes of the job have
  bool key_is_drawn = false;           // by their launcher, so that it is the same in all of them
  std::string tls_library;             // OpenSSL's libssl, for dlopen
  bool encrypt = true;                 // also what follows the greeting; the same in all processes
  // To each process of another host: they carry stripes of large messages. The same in all
  // processes; with a companion, one. At most Stripes::kMaxConnections.
  int connections = 1;
  // The host of each process and agent: the connections of some pairs are then made when they are
  // first needed (mesh.h). Empty: all connect at the start.
  std::vector<int> hosts;
  Companion* companion = nullptr;       // carries the messages of channels; outlives the endpoint
  double connect_timeout_seconds = 60;  // until its peers of the start have met
  double agent_connect_timeout_seconds = 10;  // for agents after that: then it goes on without them
  std::chrono::milliseconds greeting_timeout = ProgressThread::kGreetingTimeout;
  // How long what is being sent may take to go out once the job has failed or this process ends.
  std::chrono::milliseconds send_grace{1000};
};

class Endpoint : public Network, public ChannelIo {
 public:
  // Returns when this process and its peers of the start have connected. Throws Error naming a
  // process that has not.
  // `labels` name the processes in errors and must outlive this.
  Endpoint(const EndpointOptions& options, int process, std::uint64_t nonce,
           const std::vector<std::string>& labels, std::shared_ptr<Arena> arena);
  ~Endpoint() override;  // announces the end

  // Network.
  void reach(int process, const WaitLimits& limits) override;
  const std::atomic<std::uint32_t>& has_left(int process) const override {
    return progress_.has_left(process);
  }
  bool is_lost(int process) const override { return progress_.is_lost(process); }
  bool spans_hosts() const override { return true; }
  bool reaches(int process) const override {
    const Peer& peer = peer_of(process);
    return peer.is_deferred || peer.connection.load() != nullptr;
  }
  const std::string& address() const override { return progress_.address(); }
  Connecting connect(int process) override;
  bool is_connected(int process) override;
  bool send_control(int process, std::span<const std::byte> bytes, double timeout_seconds) override;
  ControlMessage next_control(double timeout_seconds) override;
  void end_control() override;
  void set_watchdog(const WakeUp* watchdog) override {
    progress_.deferred_abort().set_watchdog(watchdog);
  }
  void leave() override;
  void stop() override;
  void abandon() override;

  // ChannelIo.
  Channels& channels() override { return channels_; }
  void send(const ChannelId& channel, std::uint32_t number, const Message& message,
            const WaitLimits& limits) override;
  void release(const ChannelId& channel, std::uint32_t number, const WaitLimits& limits,
               bool at_once = true) override;
  WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                  bool receives) override {
    return progress_.wait(counter, target, limits, receives);
  }

  // Whether each of the two has connected to the other one.
  bool has_met(int process) const { return peer_of(process).is_met.load(); }

 private:
  // Another process or agent.
  struct Peer {
    Peer(std::string at, bool deferred) : address(std::move(at)), is_deferred(deferred) {}
    ~Peer() { delete connection.load(); }
    bool is_remote() const { return !address.empty(); }

    const std::string address;  // "" on this host
    const bool is_deferred;
    std::atomic<Connection*> connection{nullptr};  // to it; stays, once it is made
    std::atomic<bool> is_met{false};               // and its own, to this process, has come
    std::mutex mutex;                              // guards what follows
    bool is_wanted = false;                        // is made, or will be
    bool is_urgent = false;                        // by the program
    bool is_begun = false;                         // by a thread
    std::string failure;                           // why it could not be made
    bool is_refused = false;                       // since nothing listens there
  };
  // Until when a connection may take. `check` is called meanwhile, and throws when it is not needed
  // any more.
  struct Limit {
    Clock::time_point end;
    std::function<void()> check;
  };
  // The other process has refused the connection, and will again.
  class Denied : public Error {
   public:
    using Error::Error;
  };
  struct Open;

  Peer& peer_of(int process) { return peers_[static_cast<std::size_t>(process)]; }
  const Peer& peer_of(int process) const { return peers_[static_cast<std::size_t>(process)]; }
  const std::string& label(int process) const { return labels_[static_cast<std::size_t>(process)]; }
  int add_peers(const EndpointOptions& options);
  void start(const EndpointOptions& options);
  void meet(bool agents, Clock::time_point end);
  void publish(int process, std::unique_ptr<Connection> made);
  std::unique_ptr<Connection> open(int process, std::uint32_t which, const Limit& limit);
  std::unique_ptr<Connection> try_to_connect(int process, const std::string& peer,
                                             const Limit& limit);
  void greet(Connection& connection, const std::string& peer, int process, std::uint32_t which,
             const Limit& limit);
  std::string has_ended(int process) const;
  std::string has_not_connected(int process) const;
  std::string does_not_listen(int process) const;
  bool meet_later(int process, const Deadline& deadline, BackgroundThreads::For whom,
                  const std::function<void()>& check);
  void want(int process, BackgroundThreads::For whom);
  void connect_later(int process) noexcept;
  bool awaits_answer(int process);
  void relay_abort();
  void report_abort() noexcept;
  void stop_connecting();
  std::uint32_t connections_to(int process) const;
  template <typename Step>
  void for_each_connection(const Step& step) {
    for (Peer& peer : peers_) {
      Connection* const first = peer.connection.load();
      if (first == nullptr) continue;
      step(*first);
      for (auto& further : first->further) step(*further);
    }
  }
  void read_all(Connection& connection, const std::string& peer, std::span<std::byte> to,
                const Limit& limit);
  std::string cannot_reach(const std::string& peer, const std::string& why) const;
  std::string fails_handshake(const std::string& peer, const std::string& why) const;
  bool takes_control(int process) const;
  bool is_in_reach(int process, const Deadline& deadline);
  bool is_forked() const { return abandoned_ || getpid() != owner_; }  // and is the child
  std::uint64_t of_companion(std::uint32_t kind, std::size_t process) const;
  void add_notices(std::vector<Connection::Notice>& notices, int process, std::uint32_t kind) const;
  std::vector<Connection::Notice> notices_to_all(std::uint32_t kind) const;
  void send_notices(std::vector<Connection::Notice> notices, std::string_view text);
  void give_up(int process, Connection::Result how, const WaitLimits& limits);
  bool wait_for_reason(int process, const WaitLimits& limits);

  const pid_t owner_ = getpid();
  const int process_;
  const std::uint64_t nonce_;
  const std::vector<std::string>& labels_;
  const std::shared_ptr<Arena> arena_;
  const std::unique_ptr<const Security> security_;
  const bool key_is_drawn_;  // by the launcher: see EndpointOptions
  const std::chrono::milliseconds send_grace_;
  Channels channels_;
  Companion* const companion_;
  const std::vector<std::byte> companion_greeting_;  // of this process
  std::deque<Peer> peers_;         // by number; this process and those of its host as well
  std::atomic<int> num_deferred_;  // connections of this process that are yet to be made
  const bool defers_ = num_deferred_ > 0;
  std::atomic<bool> has_reported_abort_{false};
  BackgroundThreads background_;  // make them, and report an abort that the progress thread found
  // When connections that are being made are given up.
  std::atomic<Clock::rep> connects_until_{Clock::time_point::max().time_since_epoch().count()};
  ProgressThread progress_;
  MessageSender sender_;
  std::size_t abort_listener_ = 0;
  std::atomic<bool> has_left_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> control_over_{false};
  std::atomic<std::uint32_t> stopped_{0};
};

}  // namespace lockstep
