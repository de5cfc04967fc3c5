// Messages from one rank to another: what collective-permute is made of.
//
// A permute is not a meeting of the whole clique: ranks without a source and without a target make
// no call at all. So each ordered pair of ranks has its own route (local_queue.h within a process,
// pair_ring.h between processes), and messages of a pair match in the order in which they were
// sent.
//
// A rank waits for several things at once (room to send, data to receive). So every event for a
// rank advances the rank's wake-up counter, and the rank then checks all its requests again.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/futex_wait.h"
#include "core/clique.h"
#include "p2p/local_queue.h"
#include "p2p/pair_ring.h"
#include "p2p/request.h"

namespace lockstep {

class Mailbox : public CliqueAttachment {
 public:
  explicit Mailbox(Clique& clique);

  // The counter of a rank of this host, which each event for it advances.
  Counter& wake_up(int rank) { return wake_ups_[local(rank)]; }
  int process_of(int rank) const;
  // Moves what can be moved without waiting.
  void progress(int self, Request& request);
  // Takes back a send whose rank gives up; its buffer is not read after this returns.
  void withdraw(int self, Request& request);
  // Throws Divergence unless the message is the one that the request expects.
  void check(int self, const Request& request, std::size_t bytes, const Origin& origin);

 private:
  static constexpr int kElsewhere = -1;

  bool same_process(int a, int b) const;
  bool is_local(int rank) const { return local(rank) != kElsewhere; }
  int local(int rank) const { return local_of_[static_cast<std::size_t>(rank)]; }
  LocalQueue& local_queue(int self, const Request& request);
  // Null while the sender has not made it.
  PairRing* pair_ring(int self, const Request& request);
  std::unique_ptr<PairRing> make_ring(int self, const Request& request);
  std::byte* shared_memory(int source, int target, bool make);

  Clique& clique_;
  std::size_t ranks_;  // of this host
  Counter* wake_ups_;
  // [source][target], both of this host, into the arena.
  std::atomic<std::uint64_t>* offsets_;
  std::vector<int> group_of_;
  std::vector<int> local_of_;  // rank -> its number among those of this host, or kElsewhere
  // [member][member] of this process.
  std::vector<std::unique_ptr<LocalQueue>> queues_;
  // [member of this process][rank][whether the member sends]; made when they are used.
  std::vector<std::unique_ptr<PairRing>> rings_;
};

}  // namespace lockstep
