// Takes the connections of other hosts' processes and reads all that comes: see endpoint.h. One
// thread, which never waits for a rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "control/failure_detector.h"
#include "control/messages.h"
#include "transport/shm/futex_wait.h"
#include "transport/shm/segment.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/frame_parser.h"
#include "transport/tcp/sockets.h"
#include "transport/tcp/tls.h"

namespace lockstep {

class Reader : FrameParser::Owner {
 public:
  // `elsewhere`: for each process, whether it is of another host; `pids`: of the others of this
  // host, whose death is noticed too, else 0. The last `num_agents` are agents: see endpoint.h.
  // A connection has `greeting_time` to show the key and to greet. The references must outlive
  // this.
  Reader(int listener, const std::vector<int>& pids, std::vector<bool> elsewhere, int process,
         std::uint64_t nonce, const std::vector<std::string>& labels, const Tls& tls,
         Streams& streams, Arena& arena, int num_agents = 0,
         std::chrono::milliseconds greeting_time = kGreetingTime);
  virtual ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  static constexpr std::chrono::seconds kGreetingTime{10};
  // How many connections may be open of which it is not known yet that they have the key, besides
  // one for each process of other hosts. One more pushes out the oldest of them.
  static constexpr std::ptrdiff_t kMostStrangers = 64;

  // Nothing is read any more; returns when the thread has ended.
  void stop();
  // In a forked child, which has no such thread: closes its copies of the descriptors.
  void abandon();

  // Returns when all processes of other hosts have connected. Throws Error naming who has not.
  void wait_for_processes(Clock::time_point end);
  // Who has not connected by then is lost, and the job goes on.
  void wait_for_agents(Clock::time_point end);
  // From now on the port is closed, and the key wiped from memory, as soon as all have connected.
  // An agent that has not come yet may still.
  void close_when_met() { closes_.store(true); }
  const std::atomic<std::uint32_t>& has_left(int process) const {
    return left_[static_cast<std::size_t>(process)];
  }
  // Its connection is, or, if it is of this host, it is dead; and it had not left.
  bool is_lost(int process) const {
    return lost_[static_cast<std::size_t>(process)].load(std::memory_order_acquire);
  }
  bool is_agent(int process) const { return process >= first_agent_; }
  // "10.0.0.1:4411"; also when the port is closed again.
  const std::string& address() const { return address_; }
  Notes& notes() { return notes_; }
  Verdict& verdict() { return verdict_; }

 private:
  // A connection, from the moment it is taken.
  struct Incoming {
    Incoming(Reader& reader, Descriptor taken);

    Descriptor fd;
    std::unique_ptr<Tls::Session> session;
    const std::string address;
    const Clock::time_point since = Clock::now();
    bool shaken = false;  // hands, by TLS
    FrameParser frames;
  };

  void run();
  void turn();
  void fail(const char* what) noexcept;
  void accept_some();
  void make_room();
  void close_port();
  void advance(Incoming& incoming);
  bool shake_hands(Incoming& incoming);
  bool read_some(Incoming& incoming);
  bool may_send(int process, std::uint32_t kind) const override;
  int greet(const Frame& frame) override;
  void left(int process) override;
  void answer(Incoming& incoming, std::uint32_t kind, std::string_view text);
  void end(Incoming& incoming, const std::string& why);
  void refuse(Incoming& incoming, const std::string& why);
  void lose(int process, const std::string& why);
  void miss(int process, const std::string& text);
  std::vector<int> missing(bool agents) const;  // that have not connected; under `mutex_`
  void drop_the_slow();
  void look_after_siblings();
  bool watch(int fd, Incoming* incoming);

  const std::vector<bool> elsewhere_;
  const int first_agent_;
  const int process_;
  const std::chrono::milliseconds greeting_time_;
  const std::uint64_t nonce_;
  const std::vector<std::string>& labels_;
  const Tls& tls_;
  Streams& streams_;
  Arena& arena_;
  Descriptor listener_, epoll_;
  const std::string address_;
  const Alarm wake_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  struct Sibling {
    int process;
    Descriptor pidfd;
  };
  std::vector<Sibling> siblings_;  // that have not ended
  bool listening_ = true;
  std::atomic<bool> closes_{false};
  Clock::time_point looked_ = Clock::now();
  std::string failure_;  // with room, since memory may be what is missing then
  std::size_t refused_ = 0;
  std::atomic<bool> over_{false};
  std::vector<std::atomic<std::uint32_t>> left_;
  std::vector<std::atomic<bool>> lost_;
  Notes notes_;
  Verdict verdict_;

  std::mutex mutex_;  // guards `met_`
  std::condition_variable meeting_;
  std::vector<bool> met_;

  std::thread thread_;
};

}  // namespace lockstep
