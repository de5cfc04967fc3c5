// Messages from one rank to another rank of the same process: the sender hands over a pointer, and
// the receiver copies once.
#pragma once

#include <deque>
#include <mutex>

#include "p2p/request.h"

namespace lockstep {

class Mailbox;

class LocalQueue {
 public:
  // Returns whether the message is new to the receiver, which then completes the request.
  bool send(Request& request);
  // Returns whether a message was there. Throws Divergence unless it is the one expected.
  bool receive(int self, Request& request, Mailbox& mailbox);
  // Takes back a send; its buffer is not read after this returns.
  void withdraw(Request& request);

 private:
  std::mutex mutex_;
  std::deque<Request*> sent_;
};

}  // namespace lockstep
