// One rank's end of a clique: what XLA holds for a (clique, device) pair.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/types.h"
#include "core/clique.h"
#include "p2p/port.h"
#include "recorder/recorder.h"

namespace lockstep {

class Communicator {
 public:
  Communicator(Clique& clique, int rank);

  int rank() const { return rank_; }
  int size() const { return clique_.size(); }

  // Runs one collective; returns when this rank's output is complete and its input may be reused.
  void run(Call call);

  // XLA makes an all-to-all of size() - 1 calls of Sendrecv: call i goes to rank + i and comes from
  // rank - i, and no buffer is touched before the last one returns. The calls are gathered and the
  // last one runs the all-to-all as one collective. Any other pattern is an error.
  void send_receive(const std::byte* from, int target, std::byte* to, int source, std::size_t bytes,
                    const Origin& origin = {});

  Request* send(int target, const std::byte* data, std::size_t bytes, const Origin& origin = {});
  Request* receive(int source, std::byte* data, std::size_t bytes, const Origin& origin = {});
  void wait(Request* request);

 private:
  void run_locked(Call& call);
  void begin_permute(std::size_t bytes, const Origin& origin);
  template <typename Step>
  auto recorded(const Record& record, const Origin& origin, Step step);
  [[noreturn]] void fail(const std::string& what);

  Clique& clique_;
  const int rank_;
  Recorder::Ring* const ring_;  // of this rank's device; null without a recorder
  std::mutex mutex_;  // XLA calls one collective of a device after the other; this makes it sure
  std::uint32_t sequence_ = kFirstNumber;
  Call all_to_all_;
  int rounds_ = 0;  // of the all-to-all that is being gathered
  Port port_;
  std::uint32_t permutes_ = 0;
  Record permute_;  // of the collective-permute whose requests are open
  Origin permute_origin_;
  int open_requests_ = 0;
};

}  // namespace lockstep
