// The thread that takes the connections of other hosts' processes and reads what comes on the first
// connection of each: it gives each frame to its channel, to the control messages or to the failure
// detector. `StripeReaders` read the further ones. It never waits for a rank. See endpoint.h.
//
// A rank that waits for a small message receives it itself, which saves the wake-up of two threads:
// whichever thread holds `polling_` reads, and the progress thread stands back while a rank does
// and shortly afterwards. Large messages are left to it, so that a process sends and receives at
// the same time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/futex_wait.h"
#include "base/refusal_log.h"
#include "control/failure_detector.h"
#include "control/messages.h"
#include "control/network/roster.h"
#include "transport/companion.h"
#include "transport/shm/segment.h"
#include "transport/tcp/acceptor.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/frame_parser.h"
#include "transport/tcp/incoming.h"
#include "transport/tcp/session.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/stripe_readers.h"

namespace lockstep {

// Connections that are made when they are first needed: see mesh.h. The progress thread calls
// these.
struct Deferred {
  std::vector<bool> is_deferred;     // of each process; empty: none is
  std::function<void(int)> greeted;  // such a process has opened a connection
  std::function<void()> aborted;     // the job has been, perhaps by another process of this host
};

// A mutex that knows whether the calling thread holds it.
class OwnedMutex {
 public:
  void lock() {
    mutex_.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    owner_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool is_held_here() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

class ProgressThread : FrameParser::Owner, StripeReaders::Owner {
 public:
  // `is_remote`: for each process, whether it is on another host; `pids`: of the other processes of
  // this host, whose death is detected too, else 0. The last `num_agents` are agents: see
  // endpoint.h. A connection has `greeting_timeout` to show the key and to greet. The references
  // outlive this.
  ProgressThread(int listener, const std::vector<int>& pids, std::vector<bool> is_remote,
                 int process, std::uint64_t nonce, const std::vector<std::string>& labels,
                 const Security& security, Channels& channels, Arena& arena, int num_agents = 0,
                 std::chrono::milliseconds greeting_timeout = kGreetingTimeout,
                 Companion* companion = nullptr, Deferred deferred = {});
  virtual ~ProgressThread();

  static constexpr std::chrono::seconds kGreetingTimeout{10};
  // How many connections of unauthenticated peers may be open, besides one for each process of
  // other hosts: the limit on descriptors is raised for as many. One more evicts the oldest of
  // them.
  static constexpr std::ptrdiff_t kMaxUnauthenticated = 64;
  // Bytes of an exception's text that another process is told.
  static constexpr std::size_t kMaxReason = 200;

  // Whether the calling thread is reading. Such a thread may not wait for other hosts.
  bool reads_on_this_thread() const { return polling_.is_held_here(); }
  // Nothing is read any more; returns when the thread has ended.
  void stop();
  // In a forked child, which has no such thread: closes its copies of the descriptors.
  void abandon();

  // Returns when the processes have connected that do so at the start. Throws Error naming those
  // missing.
  void wait_for_processes(Clock::time_point end) { roster_.wait_for_processes(end); }
  // Whether that process has opened its connections.
  bool has_connected(int process) { return roster_.has_connected(process); }
  bool has_greeted(int process) { return roster_.has_greeted(process); }
  // `wait_until`, for a counter that a message from another host advances. `receives`: this thread
  // reads from the connections meanwhile.
  WaitResult wait(Counter& counter, std::uint32_t target, const WaitLimits& limits, bool receives);
  // An agent that has not connected by then is lost, and the job goes on.
  void wait_for_agents(Clock::time_point end);
  // The peers of the start have met: the port is closed with this.
  void set_started() { has_started_.store(true); }
  // From now on the port is closed, and the key wiped from memory, as soon as all have connected.
  // An agent that is late may still connect.
  void close_when_met() { closes_.store(true); }
  // From now on each welcome says that the program of this process has ended.
  void set_program_ended() { program_ended_.store(true); }
  // Notes a welcome of a process whose program has ended. Called by any thread.
  void welcomed_after_end(int process) {
    if (!has_greeted(process)) set_left(process, 0);
  }
  const std::atomic<std::uint32_t>& has_left(int process) const {
    return failures_.has_left(process);
  }
  bool is_lost(int process) const { return failures_.is_lost(process); }
  // Nothing listens where that one was. Nothing but messages of watchdogs goes between a process
  // and an agent, so neither takes it for the failure of the job.
  void lose_agent(int process) {
    if (is_agent(process) || is_agent(process_)) failures_.mark_lost(process, {});
  }
  bool is_agent(int process) const { return roster_.is_agent(process); }
  // "10.0.0.1:4411"; also when the port is closed again.
  const std::string& address() const { return acceptor_.address(); }
  ControlMessages& control() { return control_; }
  DeferredAbort& deferred_abort() { return failures_.deferred_abort(); }

 private:
  class Receiver;

  void run();
  bool stands_back() const;
  void poll_until(std::chrono::milliseconds timeout);
  void poll(std::chrono::milliseconds timeout);  // the rest needs `polling_`
  void fail(const char* what) noexcept override;
  void accept_some();
  void evict_oldest_unauthenticated();
  void advance(Incoming& incoming);
  bool authenticate(Incoming& incoming);
  bool read_some(Incoming& incoming);
  void hand_over(Incoming& incoming);
  void ended(int process, const std::string& why) override;
  void changed(int process, const std::string& why) override;
  void lose_ended();
  void adopt_left();
  void set_left(int process, std::uint64_t sent);
  bool may_send(int process, std::uint32_t kind) const override;
  int greet(const Frame& frame, std::span<const std::byte> rest) override;
  void left(int process, std::uint32_t connection, std::uint64_t sent) override;
  void aborted(std::string_view text) override { arena_.abort(text); }
  void control(int process, std::uint64_t bytes, std::size_t at,
               std::span<const std::byte> part) override {
    control_.take(process, bytes, at, part);
  }
  void welcome(Incoming& incoming);
  void answer(Incoming& incoming, std::uint32_t kind, std::string_view text);
  void end(Incoming& incoming, const std::string& why);
  void refuse(Incoming& incoming, const std::string& why);
  void drop_late();

  OwnedMutex polling_;             // held by the thread that reads
  std::atomic<int> receivers_{0};  // ranks that wait in `wait` and may read
  std::atomic<bool> a_receiver_reads_{false};
  std::atomic<Clock::rep> last_read_{0};  // when a receiver has stopped to read
  Counter resume_;                        // advanced when the progress thread is needed

  const int process_;
  const std::chrono::milliseconds greeting_timeout_;
  const std::uint64_t nonce_;
  const std::vector<std::string>& labels_;
  const Security& security_;
  const Deferred deferred_;
  Channels& channels_;
  Arena& arena_;
  Companion* const companion_;  // null: there is none
  Descriptor epoll_;
  Acceptor acceptor_;
  Roster roster_;
  FailureDetector failures_;
  ControlMessages control_;
  const WakeUp wake_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::atomic<bool> has_started_{false}, closes_{false}, program_ended_{false};
  std::atomic<bool> over_{false};
  Clock::time_point polled_ = Clock::now();
  std::string failure_;  // with room, since memory may be what is missing then
  std::atomic<bool> failed_{false};
  std::vector<std::atomic<std::uint32_t>> left_;  // of each process, a bit for each connection
  bool has_relayed_ = false;
  RefusalLog refusals_;
  StripeReaders stripe_readers_;

  std::thread thread_;
};

}  // namespace lockstep
