// Requests of the ranks of this process to its watchdog (a thread of Python's), and its responses.
//
// Requests are numbered, and a response names the request that it is for: one that comes late is
// never taken for the response to another request. The watchdog gets them one at a time, in order.
// Each request has its own time, which begins when those before it have had theirs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/futex_wait.h"

namespace lockstep {

class Requests {
 public:
  enum class Response { kUnknown, kYes, kNo };  // unknown: also that none came

  // `wake_up` notifies the watchdog; `abort`: not 0 once the job has failed, which ends all waits
  // here. Both must outlive this.
  Requests(const WakeUp& wake_up, const std::atomic<std::uint32_t>& abort)
      : wake_up_(wake_up), abort_(abort) {}

  // Without a watchdog every request is answered at once: unknown.
  void set_watched(bool watched);

  // Withdraws the request when no response has come in time.
  Response request(const std::string& text, std::chrono::milliseconds timeout);

  // Requests whether two programs are one: `pair` is the peer, and what its number of an execution
  // is more than ours. Yes and no are kept. A request that was not answered in time stays open, and
  // later calls find its response without waiting for it; after the watchdog's "unknown" the
  // request is made again.
  using Pair = std::pair<int, std::int64_t>;
  Response compare(const Pair& pair, const std::function<std::string()>& text,
                   std::chrono::milliseconds timeout);

  // The watchdog's side. The next request, the same one until it is answered or withdrawn; number 0
  // when there is none. A response to a request that is not open any more is dropped; `respond`
  // returns whether a rank waits for it.
  struct Request {
    std::uint64_t number = 0;
    std::string text;
  };
  Request next();
  bool respond(std::uint64_t number, Response response);

 private:
  struct Open {
    Request request;
    Clock::time_point since;
    bool overdue = false;  // its time is over: no rank waits for it, others go first
    std::optional<Response> response;
  };
  using Shared = std::shared_ptr<Open>;

  // All of these are called under `mutex_`.
  Shared post(const std::string& text);
  const Open* first() const;
  void wait(std::unique_lock<std::mutex>& lock, Open& open, std::chrono::milliseconds timeout);

  const WakeUp& wake_up_;
  const std::atomic<std::uint32_t>& abort_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool watched_ = false;
  std::uint64_t last_ = 0;
  std::deque<Shared> open_;
  std::map<Pair, Shared> compared_;
};

}  // namespace lockstep
