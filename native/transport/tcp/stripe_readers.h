// The threads that read the further connections of other processes, which carry stripes of large
// messages (stripes.h): one thread for the second connection of each process, one for the third,
// and so on. The first one is the progress thread's, which accepts and greets them all.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/futex_wait.h"
#include "transport/tcp/incoming.h"
#include "transport/tcp/sockets.h"

namespace lockstep {

class StripeReaders {
 public:
  // `ended` is called, by any of the threads, when a connection of a process has ended.
  using Ended = std::function<void(int process, const std::string& why)>;
  StripeReaders(std::size_t count, Ended ended);
  ~StripeReaders();
  StripeReaders(const StripeReaders&) = delete;
  StripeReaders& operator=(const StripeReaders&) = delete;

  // From now on connection i of its process, which has greeted, is read by thread i - 1.
  void add(std::unique_ptr<Incoming> connection);
  // Nothing is read any more; returns when the threads have ended.
  void stop();
  // In a forked child: closes its copies of the descriptors.
  void abandon();

 private:
  class Reader {
   public:
    explicit Reader(const Ended& ended);
    void add(std::unique_ptr<Incoming> connection);
    void stop();
    void abandon();

   private:
    void run();
    void advance(Incoming& connection);
    void end(const Incoming& connection, const std::string& why);

    const Ended& ended_;
    Descriptor epoll_;
    const WakeUp wake_;
    std::atomic<bool> over_{false};
    std::mutex mutex_;  // guards `connections_`
    std::vector<std::unique_ptr<Incoming>> connections_;
    std::thread thread_;
  };

  const Ended ended_;
  std::vector<std::unique_ptr<Reader>> readers_;
};

}  // namespace lockstep
