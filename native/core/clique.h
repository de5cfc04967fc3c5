// A clique: the devices that take part in one collective, in rank order.
//
// A rank is a device; its calls come from one of XLA's threads. The ranks of one process meet in
// `LocalGroup`: each hands in its call, the last one to arrive becomes the leader and does the work
// of the whole process, the others sleep until it is done. So there is one thread a process in
// every exchange between processes, bytes between processes do not grow with the devices of a
// process, and a process with more devices than cores switches threads once a collective.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/futex_wait.h"
#include "core/types.h"
#include "p2p/mailbox.h"
#include "transport/shm/broadcast_ring.h"

namespace lockstep {

class Job;

// The ranks of one process, ascending.
struct Group {
  int process;
  std::vector<int> ranks;
};

// The meeting place of the ranks of one process.
class LocalGroup {
 public:
  LocalGroup(Job& job, std::vector<int> devices);

  // Hands in the call of the member with this index. Returns when the leader has run `work` on the
  // calls of all members; throws what the leader threw, or an Error naming the devices that did not
  // come before the deadline.
  using Work = std::function<void(std::span<const Call* const>, std::uint32_t sequence)>;
  void run(int member, std::uint32_t sequence, const Call& call, const Work& work);

 private:
  // Two rounds are enough: no rank enters round n + 2 before all have left round n.
  struct Round {
    enum State : std::uint32_t { kGathering, kRunning, kAbandoned };
    std::atomic<std::uint32_t> state{kGathering};
    std::atomic<std::uint32_t> arrived{0};
    std::vector<const Call*> calls;
    std::vector<std::atomic<bool>> present;
    std::string error;  // written by the leader before `done` advances
  };

  // Throws Error, with two calls that differ, unless all are the same collective.
  void check_same(std::span<const Call* const> calls, std::uint32_t sequence) const;
  void lead(Round& round, std::uint32_t sequence, const Work& work);
  void wait_for_leader(Round& round, int member, std::uint32_t sequence, const Call& call);
  std::string not_arrived(const Round& round) const;

  Job& job_;
  std::vector<int> devices_;
  Round rounds_[2];
  Counter done_;
};

class Clique {
 public:
  Clique(Job& job, std::vector<int> devices, const std::vector<int>& processes);

  int size() const { return static_cast<int>(devices_.size()); }
  const std::vector<int>& devices() const { return devices_; }
  const std::vector<Group>& groups() const { return groups_; }
  int self() const { return self_; }  // index of this process's group; -1 when it has no rank here
  std::size_t max_local() const { return max_local_; }
  std::size_t capacity() const { return capacity_; }
  Job& job() const { return job_; }
  LocalGroup& local_group() { return *local_group_; }
  Mailbox& mailbox() { return *mailbox_; }

  // The broadcast rings of the group with this index. Every collective sends its first message of a
  // chunk on the partials ring; all-reduce sends what it has reduced on the results ring.
  BroadcastRing& partials(int group) { return partials_[static_cast<std::size_t>(group)]; }
  BroadcastRing& results(int group) { return results_[static_cast<std::size_t>(group)]; }

  // "8 devices: 0, 1, 2048, ..." for errors.
  std::string describe() const;
  std::uint64_t id() const { return id_; }
  int member_of(int rank) const { return member_of_[static_cast<std::size_t>(rank)]; }

  // Whether all processes of the clique can read one another's memory; unknown at first. For the
  // leader.
  std::optional<bool>& single_copy() { return single_copy_; }

 private:
  std::byte* shared_memory(std::size_t bytes);
  void make_rings();
  void add_rings(int group, std::byte* memory);
  std::size_t ring_bytes() const;

  Job& job_;
  std::vector<int> devices_;
  std::uint64_t id_;  // a hash of the devices
  std::vector<Group> groups_;
  std::vector<int> member_of_;  // rank -> index in its group
  int self_ = -1;
  std::size_t max_local_ = 0;
  std::size_t capacity_ = 0;
  std::optional<bool> single_copy_;
  std::vector<std::byte> private_memory_;
  std::vector<BroadcastRing> partials_;
  std::vector<BroadcastRing> results_;
  std::unique_ptr<LocalGroup> local_group_;
  std::unique_ptr<Mailbox> mailbox_;
};

// One collective of one process, as its leader sees it: waits with the collective's deadline, and
// the checks of what the peers send.
class CollectiveContext {
 public:
  CollectiveContext(Clique& clique, std::span<const Call* const> calls, std::uint32_t sequence);

  Clique& clique() { return clique_; }
  int peers() const { return static_cast<int>(clique_.groups().size()); }
  int self() const { return clique_.self(); }

  // A free slot of one of this process's rings; nothing is sent before `publish`.
  std::byte* acquire(BroadcastRing& ring);
  // `part_for` maps a group that does not share memory to the part of the payload that it needs.
  template <typename PartFor>
  void publish(BroadcastRing& ring, const PartFor& part_for) {
    ring.publish(signature_, part_for, watch_);
  }
  void release(BroadcastRing& ring) { ring.release(watch_); }
  // The next message of a peer's ring. Throws when the peer is in another collective.
  const std::byte* await(BroadcastRing& ring);

  // Whether this collective, in which so many bytes go from one process to another, moves them in
  // one copy. The same answer in every process: the first time, they try it and exchange the
  // results.
  bool single_copy(std::size_t bytes);
  // Copies from the memory of the group with this index.
  void read(int group, std::span<const MemoryPiece> pieces);
  // Returns when every peer has released all messages of this process's ring: none of them reads a
  // buffer any more whose address was in one.
  void drain(BroadcastRing& ring);

 private:
  bool agree_on_single_copy();
  // Sends the byte to all peers and hands each of theirs to `take`.
  template <typename Take>
  void broadcast(std::byte mine, Take take);
  void wait(Counter& counter, std::uint32_t target, int peer);
  void check(const Signature& theirs, int peer);
  void record_arrival();
  [[noreturn]] void give_up(int peer);
  [[noreturn]] void give_up_on(int peer);

  Clique& clique_;
  std::span<const Call* const> calls_;
  Signature signature_;
  Watch watch_;
  std::uint32_t first_;  // the number of this collective's first message on the partials rings
  int arrived_ = 0;      // peers whose first message is there
};

}  // namespace lockstep
