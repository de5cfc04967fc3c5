// Frames to and from the processes of other hosts, over TCP with TLS 1.3.
//
// A process opens one connection to every process of another host, for what it sends there, and
// takes one from each: a connection carries frames in one direction. A thread that sends writes
// the frame itself, under the send lock of the connection. One thread (`ProgressThread`) reads
// everything that comes. If the options say so, there are further connections, which carry stripes
// of large messages (stripes.h), with threads of their own (`SenderThreads`, `StripeReaders`).
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
// peers may have used all places. When all have connected, the port is closed. A peer that breaks
// the protocol is refused (before its greeting was accepted; the job goes on), or fails the job.
// Every number that comes is checked.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "control/messages.h"
#include "core/futex_wait.h"
#include "core/secret.h"
#include "transport/shm/segment.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/companion.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/progress_thread.h"
#include "transport/tcp/sender_threads.h"
#include "transport/tcp/session.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/stripes.h"

namespace lockstep {

// Where the other hosts are. Without addresses the job has one host only.
struct EndpointOptions {
  std::vector<std::string> addresses;  // of each process, "10.0.0.1:4411"; "" on this host
  int num_agents = 0;                  // the last ones of these are not processes, but agents
  std::vector<int> pids;               // of the others of this host, else 0; may be empty
  int listener = -1;                   // a listening socket of this process; duplicated
  SecretBytes key;                     // that all processes of the job have
  std::string tls_library;             // OpenSSL's libssl, for dlopen
  bool encrypt = true;                 // also what follows the greeting; the same in all processes
  // To each process of another host: they carry stripes of large messages. The same in all
  // processes; with a companion, one. At most Stripes::kMaxConnections.
  int connections = 1;
  Companion* companion = nullptr;       // carries the messages of channels; outlives the endpoint
  double connect_timeout_seconds = 60;  // until all have met
  double agent_connect_timeout_seconds = 10;  // for agents after that: then it goes on without them
  std::chrono::milliseconds greeting_timeout = ProgressThread::kGreetingTimeout;
};

class Endpoint {
 public:
  // Returns when this process and all of other hosts have connected. Throws Error naming a process
  // that has not.
  // `labels` name the processes in errors and must outlive this.
  Endpoint(const EndpointOptions& options, int process, std::uint64_t nonce,
           const std::vector<std::string>& labels, std::shared_ptr<Arena> arena);
  ~Endpoint();  // announces the end
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  bool reaches(int process) const {
    return connections_[static_cast<std::size_t>(process)] != nullptr;
  }
  Channels& channels() { return channels_; }
  const std::string& address() const { return progress_.address(); }  // where others connect to

  // Sends message `number` of the channel. Returns when it is on its way, or the other process has
  // left; throws Error when it cannot be sent.
  void send(const ChannelId& channel, std::uint32_t number, const Message& message,
            const WaitLimits& limits);
  // See ProgressThread::wait.
  WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits, bool receives) {
    return progress_.wait(counter, target, limits, receives);
  }
  // Reports that message `number` of the channel has been released: `at_once`, or with the next
  // frame to that process. The sender can wait for the latter forever.
  void release(const ChannelId& channel, std::uint32_t number, const WaitLimits& limits,
               bool at_once = true);

  // Sends a control message to a process of another host. False when that is not possible: the
  // process is lost, there is no time left, or the message is longer than
  // ControlMessages::kMaxLength. That does not fail the job.
  bool send_control(int process, std::span<const std::byte> bytes, double timeout_seconds);
  ControlMessage next_control(double timeout_seconds);
  // No control messages are sent or taken any more.
  void end_control();
  // The wake-up of the watchdog of this process, which outlives this; null: there is none.
  void set_watchdog(const WakeUp* watchdog) { progress_.deferred_abort().set_watchdog(watchdog); }
  // Whether the process, if it is on another host, has lost its connection, or, if it is on this
  // one, has died. A process that has left is not lost.
  bool is_lost(int process) const { return progress_.is_lost(process); }

  // Reports to the others that this process's program has ended and makes no more calls.
  void leave();
  // Waits for threads that still send; nothing is sent or read after it.
  void stop();
  // In a forked child: closes its copies of the connections, which are its parent's.
  void abandon();
  // Not 0 once that process has said so; all that it had sent before has then been received.
  const std::atomic<std::uint32_t>& has_left(int process) const {
    return progress_.has_left(process);
  }

 private:
  struct Connection {
    Descriptor fd;
    std::unique_ptr<Session> session;
    std::vector<std::unique_ptr<Connection>> further;  // to the same process, for stripes
    std::mutex send_lock;                              // held while a frame is sent
    bool broken = false;
    std::mutex message_lock;  // held while a control message is sent; taken before `send_lock`
    std::vector<std::byte> unsent;  // of a late control message: goes out before anything else
    std::vector<std::byte> head;    // of the frame that is sent

    std::mutex release_lock;  // guards what follows; no thread waits for another lock under it
    std::vector<std::byte> releases;  // go before the next frame
    bool urgent = false;              // and do not wait for one
    // Whether the thread with the send lock sends what is urgent before it gives the lock up. One
    // that sends a control message does not: its deadline may be short.
    bool sends_urgent = false;
  };
  enum class WriteResult { kAll, kBroken, kLate };
  struct Open;
  class BreakOnException;

  void meet(const EndpointOptions& options, std::uint64_t nonce, bool agents,
            Clock::time_point end);
  std::unique_ptr<Connection> open(int process, std::uint32_t which, const std::string& address,
                                   std::uint64_t nonce, Clock::time_point end);
  std::unique_ptr<Connection> try_to_connect(const std::string& peer, const std::string& address,
                                             Clock::time_point end);
  void greet(Connection& connection, const std::string& peer, int process, std::uint32_t which,
             std::uint64_t nonce, Clock::time_point end);
  std::uint32_t connections_to(int process) const;
  template <typename Step>
  void for_each_connection(const Step& step) {
    for (auto& first : connections_) {
      if (!first) continue;
      step(*first);
      for (auto& further : first->further) step(*further);
    }
  }
  void read_all(Connection& connection, const std::string& peer, std::span<std::byte> to,
                Clock::time_point end);
  std::string cannot_reach(const std::string& peer, const std::string& why) const;
  // Without waiting for why it could not be sent.
  WriteResult try_frame(Connection& connection, Frame frame, std::span<const std::byte> header,
                        std::span<const std::byte> rest, const WaitLimits& limits);
  WriteResult try_stripes(Connection& first, const Frame& frame, const Message& message,
                          const Stripes& stripes, const WaitLimits& limits);
  static bool lock(std::unique_lock<std::mutex>& send_lock, const Deadline& deadline);
  static void break_connection(Connection& connection);
  static void append_releases(Connection& connection);
  WriteResult end_frame(Connection& connection, std::unique_lock<std::mutex>& send_lock,
                        WriteResult how, const WaitLimits& limits);
  void send_urgent(int process, const WaitLimits& limits);
  struct Written {
    WriteResult how;
    std::size_t bytes;  // of head and body together, that have gone out
  };
  Written write(Connection& connection, std::span<const std::byte> head,
                std::span<const std::byte> body, const WaitLimits& limits);
  WriteResult write_unsent(Connection& connection, const WaitLimits& limits);
  bool send_part(Connection& connection, Frame frame, std::span<const std::byte> part,
                 const Deadline& deadline);
  bool takes_control(int process) const;
  bool is_forked() const { return abandoned_ || getpid() != owner_; }  // and is the child
  std::uint64_t of_companion(std::uint32_t kind, std::size_t process) const;
  void broadcast(std::uint32_t kind, std::span<const std::byte> body);
  void give_up(int process, WriteResult how, const WaitLimits& limits);

  const pid_t owner_ = getpid();
  const int process_;
  const std::vector<std::string>& labels_;
  const std::shared_ptr<Arena> arena_;
  const std::unique_ptr<const Security> security_;
  Channels channels_;
  Companion* const companion_;
  const std::vector<std::byte> companion_greeting_;  // of this process
  ProgressThread progress_;
  std::vector<std::unique_ptr<Connection>> connections_;  // null for processes of this host
  SenderThreads senders_;
  std::size_t abort_listener_ = 0;
  std::atomic<bool> has_left_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> control_over_{false};
  std::atomic<std::uint32_t> stopped_{0};
};

}  // namespace lockstep
