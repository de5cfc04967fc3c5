#include "p2p/local_queue.h"

#include "base/copy.h"
#include "p2p/mailbox.h"

namespace lockstep {

bool LocalQueue::send(Request& request) {
  if (request.started) return false;
  request.started = true;
  std::lock_guard lock(mutex_);
  sent_.push_back(&request);
  return true;
}

bool LocalQueue::receive(int self, Request& request, Mailbox& mailbox) {
  {
    // Copying under the lock keeps the sender from giving up in the middle of it.
    std::lock_guard lock(mutex_);
    if (sent_.empty()) return false;
    Request& sent = *sent_.front();
    mailbox.check(self, request, sent.bytes, sent.origin);
    sent_.pop_front();
    OutputCopy(request.bytes)(request.to, sent.from, request.bytes);
    sent.complete.store(true, std::memory_order_release);
  }
  request.complete.store(true, std::memory_order_relaxed);
  return true;
}

void LocalQueue::withdraw(Request& request) {
  std::lock_guard lock(mutex_);
  std::erase(sent_, &request);
}

}  // namespace lockstep
