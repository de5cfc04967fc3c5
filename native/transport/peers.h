// What a transport between hosts asks about the processes of other hosts: the network of the job
// (control/network) answers.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex_wait.h"

namespace lockstep {

class Peers {
 public:
  // Connects to that process, and waits for its connection, unless both are there. Comes before the
  // first message to or from it. Throws Error when that is not possible and it has not left.
  virtual void reach(int process, const WaitLimits& limits) = 0;
  // Becomes non-zero once that process has reported that its program has ended; all that it had
  // sent before has then been received.
  virtual const std::atomic<std::uint32_t>& has_left(int process) const = 0;
  // Whether the process, if it is on another host, has lost its connection, or, if it is on this
  // one, has died. A process that has left is not lost.
  virtual bool is_lost(int process) const = 0;

 protected:
  ~Peers() = default;
};

}  // namespace lockstep
