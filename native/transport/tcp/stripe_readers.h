// The threads that read the further connections of other processes, which carry stripes of large
// messages (stripes.h): thread i reads connection i + 1 of all processes. Connection 0 is the
// progress thread's, which accepts and greets them all.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/futex_wait.h"
#include "transport/tcp/incoming.h"
#include "transport/tcp/sockets.h"

namespace lockstep {

class StripeReaders {
 public:
  // Called by any of the threads.
  class Owner {
   public:
    // A connection of that process has ended, and has not said that its program has.
    virtual void ended(int process, const std::string& why) = 0;
    // Before that, if what that process has sent was changed on its way.
    virtual void changed(int process, const std::string& why) = 0;
    // Nothing is received any more.
    virtual void fail(const char* what) noexcept = 0;

   protected:
    ~Owner() = default;
  };

  StripeReaders(std::size_t count, Owner& owner);  // throws Error

  // A process has greeted on this connection, and sends nothing before it has its answer.
  void add(std::unique_ptr<Incoming> connection);
  // Nothing is read any more; returns when the threads have ended.
  void stop();
  // In a forked child: closes its copies of the descriptors.
  void abandon();

 private:
  class Reader {
   public:
    explicit Reader(Owner& owner);
    ~Reader() { stop(); }
    void add(std::unique_ptr<Incoming> connection);
    void stop();
    void abandon();

   private:
    void run();
    void poll();
    void advance(Incoming& connection);
    void end(const Incoming& connection, const std::string& why);

    Owner& owner_;
    Descriptor epoll_;
    const WakeUp wake_;
    std::atomic<bool> over_{false};
    std::mutex mutex_;  // guards `connections_`
    std::vector<std::unique_ptr<Incoming>> connections_;
    std::thread thread_;
  };

  std::vector<std::unique_ptr<Reader>> readers_;
};

}  // namespace lockstep
