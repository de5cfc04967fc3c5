// One rank's end of a clique: what XLA holds for a (clique, device) pair.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "clique.h"
#include "mailbox.h"
#include "types.h"

namespace lockstep {

class Communicator {
 public:
  Communicator(Clique& clique, int rank);

  int rank() const { return rank_; }
  int size() const { return clique_.size(); }

  // Runs one collective; returns when this rank's output is complete and its input may be reused.
  void run(const Call& call);

  // XLA makes an all-to-all of size() - 1 calls of Sendrecv: call i goes to rank + i and comes from
  // rank - i, and no buffer is touched before the last one returns. The calls are gathered and the
  // last one runs the all-to-all as one collective. Any other pattern is an error.
  void send_receive(const std::byte* from, int target, std::byte* to, int source,
                    std::size_t bytes);

  Request* send(int target, const std::byte* data, std::size_t bytes);
  Request* receive(int source, std::byte* data, std::size_t bytes);
  void wait(Request* request);

 private:
  void run_locked(const Call& call);
  [[noreturn]] void fail(const std::string& what);

  Clique& clique_;
  const int rank_;
  std::mutex mutex_;  // XLA calls one collective of a device after the other; this makes it sure
  std::uint32_t sequence_ = 0;
  Call all_to_all_;
  int rounds_ = 0;  // of the all-to-all that is being gathered
  Port port_;
};

}  // namespace lockstep
