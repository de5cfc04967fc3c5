// One process's view of the job: which processes there are, which devices they own, and the
// cliques (groups of devices) that have met so far.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/futex_wait.h"
#include "base/types.h"
#include "control/network/endpoint.h"
#include "control/requests.h"
#include "core/transports.h"
#include "recorder/recorder.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace lockstep {

class Clique;

// The algorithm that a job prescribes for an operation between hosts: see collectives.cc.
struct Prescribed {
  Op op;
  std::string algorithm;
  std::size_t max_bytes;  // that each device puts in
};

struct JobOptions {
  int process = 0;
  int arena_fd = -1;
  std::uint64_t nonce = 0;
  double timeout_seconds = 0;   // 0: no deadline
  int cores = 1;                // this process's share of the host's cores
  bool oversubscribed = false;  // more processes than cores on this host
  int device_id_bytes = 4;      // in this jaxlib's lists of devices; 0: not known
  bool single_copy = true;      // large messages by CrossMemoryReader, where the system permits it
  // From how many bytes on, from one process to another; the same in all processes. Below, two
  // copies in the cache cost less than a system call that looks up every page.
  std::size_t single_copy_from = 512 << 10;
  // For Jobs of one process that share one mapping, in place of arena_fd and nonce. ThreadSanitizer
  // knows memory by its address: it sees what two Jobs do to the arena only where they share it.
  std::shared_ptr<Arena> arena;
  std::vector<std::string> labels;     // how errors name each process, and behind them each agent
  std::vector<int> hosts;              // a number of the host of each process; empty: one host
  std::vector<Prescribed> algorithms;  // between hosts, in place of the table's choice
  RecorderOptions recorder;            // its path, host and attempt; the rest is filled in here
  EndpointOptions endpoint;            // to the other hosts
  // Names of UCX's library, which then carries the messages between hosts. Empty: TCP does.
  std::vector<std::string> ucx_libraries;

  // `labels` has the processes, and behind them the agents.
  int num_processes() const { return static_cast<int>(labels.size()) - endpoint.num_agents; }
  bool is_agent() const { return process >= num_processes(); }
};

class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();

  int process() const { return options_.process; }
  int num_processes() const { return options_.num_processes(); }
  bool is_agent() const { return options_.is_agent(); }
  int cores() const { return options_.cores; }
  int device_id_bytes() const { return options_.device_id_bytes; }
  double timeout_seconds() const { return options_.timeout_seconds; }
  std::string timeout_text() const;  // "0.5 s"
  const std::string& label(int process) const { return options_.labels.at(process); }
  const std::vector<Prescribed>& algorithms() const { return options_.algorithms; }
  int host_of(int process) const { return options_.hosts.empty() ? 0 : options_.hosts.at(process); }
  Arena& arena() { return *arena_; }
  Recorder& recorder() { return recorder_; }
  const WakeUp& wake_up() const { return wake_up_; }

  // While this is set, a collective of this process raises it at once. Empty: none. An execution
  // that was refused stays refused: the devices of a process come to a collective one by one, and
  // one that comes when this is lifted would wait for the others forever.
  void forbid(std::string text);
  void check_allowed(const Origin& origin);

  // Called when a collective raises: whether one of another execution has raised before, in
  // this process. False where executions are not numbered.
  bool has_raised_before(const Origin& origin);

  // Aborts the job because of an error in this process; returns its text. If it has failed the job,
  // and names no process, it gets the name of this one: the others would not know whose memory is
  // used up, say.
  std::string failed(std::string_view text);
  // Two members of a clique are in different collectives. Aborts the job, after giving the watchdog
  // (if there is one) time to abort it with a table of all calls; returns what all raise.
  std::string diverged(const std::string& text);
  // Aborts the job for a wait that has met its deadline, after asking the watchdog for a reason;
  // returns what all raise.
  std::string timed_out(const std::string& text);
  // Whether two look-alike collectives with different numbers may meet: one program may carry two
  // numbers, because it was compiled from other lines, or comes from a compilation cache. Asks the
  // watchdog, because only Python can compare programs. Without an answer they may meet this time,
  // and the next call looks for it again.
  bool may_meet(const Origin& mine, int peer, const Origin& theirs);
  void set_watched(bool watched);
  // For the watchdog. The text of a request is "programs" and five numbers (execution and channel
  // here, the peer, execution and channel there), "deadline" and a text, or that of a divergence.
  Requests& requests() { return requests_; }

  // The processes of other hosts, where there are any.
  Network& network() { return transports_.network(); }
  const Network& network() const { return transports_.network(); }
  // How this process exchanges data with another one.
  Transport& transport(int process) { return transports_.to(process); }
  // Becomes non-zero once that process's program has ended. Null in a job of one host, where the
  // watchdog detects it, and can say more.
  const std::atomic<std::uint32_t>* has_left(int process) {
    return transport(process).has_left(process);
  }
  // Whether that process has died or is unreachable. Known where there are several hosts.
  bool is_lost(int process) const {
    return process >= 0 && process < num_members() && network().is_lost(process);
  }
  // A rank waits, in `what`, for a process that has left: that is a divergence.
  std::string has_ended(int process, const std::string& what);
  // Returns when no collective of this process is running or about to: its program has ended, but
  // what it has dispatched, and perhaps forgotten, may be.
  void finish();
  // This process's program has ended; `state` is for its record.
  void leave(Recorder::State state);
  // Notes that another job takes its place in this agent; this one stays, as calls may be in
  // flight.
  void retire();
  // A collective of this process, while it lives: `finish` waits for those in flight.
  class InFlight {
   public:
    explicit InFlight(Job& job) : job_(job) { job_.begun_.fetch_add(1); }
    ~InFlight() { job_.ended_.fetch_add(1); }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    Job& job_;
  };
  std::size_t single_copy_from() const { return options_.single_copy_from; }

  // The table of all devices: global id -> process. Set once, before the first clique is made.
  void set_devices(const std::vector<int>& ids, const std::vector<int>& processes);
  bool knows_devices() const { return num_devices() != 0; }
  std::size_t num_devices() const;
  // -1 for an id that no device has.
  int process_of(int device) const;

  // The clique of these devices, in this order. All its processes get the same shared state.
  Clique& clique(const std::vector<int>& devices);

  // How long a message from one rank to another has to be before its address is sent in its place.
  // Streaming through slots is faster while both ends have a core and the pages are small (glibc
  // takes huge ones for buffers of more than 32 MiB); with one core for both it takes twice as
  // long.
  std::size_t single_message_from() const {
    return options_.single_copy_from * (options_.oversubscribed ? 1 : 64);
  }

  // How long a leader may spin for another process, and a device's thread for its siblings.
  std::chrono::nanoseconds process_spin() const;
  std::chrono::nanoseconds sibling_spin(int siblings) const;
  // How long a device's thread that shares its leader's work may spin for more of it; zero where
  // it is not to share. With other hosts, a thread that reads from the network needs a core too.
  std::chrono::nanoseconds sharing_spin() const;

 private:
  const JobOptions options_;
  const std::shared_ptr<Arena> arena_;
  Recorder recorder_;
  WakeUp wake_up_;
  Requests requests_;
  std::atomic<bool> forbidden_{false};  // something is, or was refused
  std::mutex forbidden_mutex_;
  std::string forbidden_text_;
  std::map<std::int64_t, std::string> refused_;  // by execution

  std::atomic<std::int64_t> first_raised_{0};  // the execution whose collective raised first

  // Counts the members of the network: processes and agents.
  int num_members() const { return static_cast<int>(options_.labels.size()); }
  void mark_left();

  Transports transports_;
  std::atomic<std::uint64_t> begun_{0}, ended_{0};  // calls
  mutable std::mutex mutex_;
  std::unordered_map<int, int> process_of_;
  int own_devices_ = 0;
  std::map<std::vector<int>, std::unique_ptr<Clique>> cliques_;
};

}  // namespace lockstep
