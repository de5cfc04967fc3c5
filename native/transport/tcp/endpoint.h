// Messages to the processes of other hosts, over TCP with TLS 1.3.
//
// A process opens one connection to every process of another host, for what it sends there, and
// takes one from each: a connection carries frames in one direction. Whoever has something to send
// writes it, one at a time for each connection; one thread (`Reader`) reads everything that comes.
//
// What is sent belongs to streams, each of one clique, from one process to one other. A stream ends
// in a ring of slots that the receiver owns (an Inlet): message n goes into slot n modulo their
// number. The receiver sends word of each slot that it has read; a sender that has not heard so
// keeps the next message. So the reader always has room, never waits, and no stream holds up
// another one.
//
// Notes, of one watcher to another, belong to no stream: what nobody takes is dropped beyond a
// bound.
//
// Agents are of this network and not of the job: on each host one that takes notes and writes
// some, also when the job has failed and when the processes of its host are dead. Agents have no
// connections between each other. No messages go to or from an agent, and it cannot fail the job:
// not by abort, nor by breaking a rule, nor by its end.
//
// Only who has the job's key gets through the handshake, and only one greeting of each process is
// taken, and answered. A connection that ends before that answer is tried again: strangers may have
// taken all places. When all have met, the port is closed. Who does not keep to the protocol is
// refused before he has a place (then the job goes on), or fails the job. Every number that comes
// is checked.
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
#include "core/secret.h"
#include "transport/shm/futex_wait.h"
#include "transport/shm/segment.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/progress_thread.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/tls.h"

namespace lockstep {

// Where the other hosts are. Without addresses the job has one host only.
struct NetworkOptions {
  std::vector<std::string> addresses;  // of each process, "10.0.0.1:4411"; "" on this host
  int num_agents = 0;                  // the last ones of these are not processes, but agents
  std::vector<int> pids;               // of the others of this host, else 0; may be empty
  int listener = -1;                   // a listening socket of this process; duplicated
  SecretBytes key;                     // that all processes of the job have
  std::string tls_library;             // OpenSSL's libssl, for dlopen
  double patience_seconds = 60;        // until all have met
  double agent_patience_seconds = 10;  // for agents after that: then it goes on without them
  std::chrono::milliseconds greeting_time = Reader::kGreetingTime;
};

// A slot's header, and what the receiver needs of the rest, which begins `at` bytes after it.
struct Message {
  std::span<const std::byte, kSlotHeader> header;
  std::size_t at;
  std::span<const std::byte> rest;
};

class Network {
 public:
  // Returns when this process has met all of other hosts. Throws Error naming who was not met.
  // `labels` name the processes in errors and must outlive this.
  Network(const NetworkOptions& options, int process, std::uint64_t nonce,
          const std::vector<std::string>& labels, std::shared_ptr<Arena> arena);
  ~Network();  // takes leave
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  bool is_elsewhere(int process) const {
    return connections_[static_cast<std::size_t>(process)] != nullptr;
  }
  Streams& streams() { return streams_; }
  const std::string& address() const { return reader_.address(); }  // where others connect to

  // Message `number` of the stream. Returns when it is on its way, or the other process has left;
  // throws Error when it cannot be sent.
  void send(const Stream& stream, std::uint32_t number, const Message& message, const Watch& watch);
  // Word that message `number` of the stream has been read.
  void release(const Stream& stream, std::uint32_t number, const Watch& watch);

  // A note to a process of another host. False when it cannot be sent: that process is lost,
  // there is no time left, or it is longer than Notes::kLongest. Only the watcher minds.
  bool send_note(int process, std::span<const std::byte> bytes, double timeout_seconds);
  Note next_note(double timeout_seconds);
  // No notes are sent or taken any more.
  void end_notes();
  // The alarm of who watches this process, null for nobody; it outlives this.
  void set_watcher(const Alarm* watcher) { reader_.verdict().set_watcher(watcher); }
  // Of another host, and its connection is lost; or of this one, and dead. Who has left is not.
  bool is_lost(int process) const { return reader_.is_lost(process); }

  // Tells the others that this process's program has ended, and will call nothing any more.
  void leave();
  // Whoever still sends is waited for, and nobody sends or reads after it.
  void stop();
  // In a forked child: closes its copies of the connections, which are its parent's.
  void abandon();
  // Not 0 once that process has said so; all that it had sent before has then been received.
  const std::atomic<std::uint32_t>& has_left(int process) const {
    return reader_.has_left(process);
  }

 private:
  struct Connection {
    Descriptor fd;
    std::unique_ptr<Tls::Session> session;
    std::mutex turn;  // of who sends a frame
    bool broken = false;
    std::mutex note;                // taken before `turn`, by who sends one
    std::vector<std::byte> unsent;  // of a note that was late: goes out before anything else
  };
  enum class Written { kAll, kBroken, kLate };
  struct Living;

  void meet(const NetworkOptions& options, std::uint64_t nonce, bool agents, Clock::time_point end);
  void connect(int process, const std::string& address, std::uint64_t nonce, Clock::time_point end);
  std::unique_ptr<Connection> try_to_connect(const std::string& who, const std::string& address,
                                             Clock::time_point end);
  void greet(Connection& connection, const std::string& who, int process, std::uint64_t nonce,
             Clock::time_point end);
  void read_all(Connection& connection, const std::string& who, std::span<std::byte> to,
                Clock::time_point end);
  std::string cannot_reach(const std::string& who, const std::string& why) const;
  void send_frame(int process, const Frame& frame, std::span<const std::byte> header,
                  std::span<const std::byte> rest, const Watch& watch);
  // Without waiting for why it could not be sent.
  Written try_frame(int process, Frame frame, std::span<const std::byte> header,
                    std::span<const std::byte> rest, const Watch& watch);
  static bool lock(std::unique_lock<std::mutex>& turn, const Deadline& deadline);
  static void cut_off(Connection& connection);
  Written write(Connection& connection, std::span<const std::byte>& bytes, const Watch& watch);
  Written write_unsent(Connection& connection, const Watch& watch);
  bool send_part(Connection& connection, Frame frame, std::span<const std::byte> part,
                 const Deadline& deadline);
  bool takes_notes(int process) const;
  bool is_forked() const { return abandoned_ || getpid() != owner_; }  // and is the child
  void tell_all(std::uint32_t kind, std::span<const std::byte> body);
  void give_up(int process, Written how, const Watch& watch);

  const pid_t owner_ = getpid();
  const int process_;
  const std::vector<std::string>& labels_;
  const std::shared_ptr<Arena> arena_;
  const Tls tls_;
  Streams streams_;
  Reader reader_;
  std::vector<std::unique_ptr<Connection>> connections_;  // null for processes of this host
  std::size_t herald_ = 0;
  std::atomic<bool> has_left_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> notes_over_{false};
  std::atomic<std::uint32_t> stopped_{0};
};

}  // namespace lockstep
