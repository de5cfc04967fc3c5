// Takes the connections of other hosts' processes and reads all that comes: see network.h. One
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

#include "fabric/arena.h"
#include "fabric/frame.h"
#include "fabric/notes.h"
#include "fabric/sockets.h"
#include "fabric/streams.h"
#include "fabric/tls.h"
#include "fabric/verdict.h"
#include "fabric/wait.h"

namespace lockstep {

class Reader {
 public:
  // `elsewhere`: for each process, whether it is of another host; `pids`: of the others of this
  // host, whose death is noticed too, else 0. The last `num_keepers` are keepers: see network.h.
  // The references must outlive this.
  Reader(int listener, const std::vector<int>& pids, std::vector<bool> elsewhere, int process,
         std::uint64_t nonce, const std::vector<std::string>& labels, const Tls& tls,
         Streams& streams, Arena& arena, int num_keepers = 0);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Nothing is read any more; returns when the thread has ended.
  void stop();
  // In a forked child, which has no such thread: closes its copies of the descriptors.
  void abandon();

  // Returns when all processes of other hosts have connected. Throws Error naming who has not.
  void wait_for_processes(Clock::time_point end);
  // Who has not connected by then is lost, and the job goes on.
  void wait_for_keepers(Clock::time_point end);
  const std::atomic<std::uint32_t>& has_left(int process) const {
    return left_[static_cast<std::size_t>(process)];
  }
  // Its connection is, or, if it is of this host, it is dead; and it had not left.
  bool is_lost(int process) const {
    return lost_[static_cast<std::size_t>(process)].load(std::memory_order_acquire);
  }
  bool is_keeper(int process) const { return process >= first_keeper_; }
  Notes& notes() { return notes_; }
  Verdict& verdict() { return verdict_; }

 private:
  // A connection, from the moment it is taken.
  struct Incoming {
    Descriptor fd;
    std::unique_ptr<Tls::Session> session;
    std::string address;
    Clock::time_point since;
    bool shaken = false;  // hands, by TLS
    int process = -1;     // once it has greeted
    Frame frame;
    std::size_t have = 0;         // bytes of the frame and of what follows it
    std::byte* room = nullptr;    // where the latter goes: into a slot, or
    std::vector<std::byte> body;  // here

    std::span<std::byte> rest() const;
  };

  void run();
  void accept_all();
  void advance(Incoming& incoming);
  bool shake_hands(Incoming& incoming);
  bool read_some(Incoming& incoming);
  void begin(Incoming& incoming);
  bool may_send(int process, std::uint32_t kind) const;
  void finish(Incoming& incoming);
  void greet(Incoming& incoming);
  void end(Incoming& incoming, const std::string& why);
  void refuse(const Incoming& incoming, const std::string& why);
  void lose(int process, const std::string& why);
  void miss(int process, const std::string& text);
  std::vector<int> missing(bool keepers) const;  // that have not connected; under `mutex_`
  void drop_the_slow();
  void look_after_siblings();
  bool watch(int fd, Incoming* incoming);

  const std::vector<bool> elsewhere_;
  const int first_keeper_;
  const int process_;
  const std::uint64_t nonce_;
  const std::vector<std::string>& labels_;
  const Tls& tls_;
  Streams& streams_;
  Arena& arena_;
  Descriptor listener_, epoll_;
  const Alarm wake_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  struct Sibling {
    int process;
    Descriptor pidfd;
  };
  std::vector<Sibling> siblings_;  // that have not ended
  bool listening_ = true;
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
