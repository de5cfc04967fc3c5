// A clique: the devices that take part in one collective, in rank order.
//
// A rank is a device; its calls come from one of XLA's threads. The ranks of one process meet in
// `LocalGroup`: each hands in its call, the last one to arrive becomes the leader and does the work
// of the whole process; the others wait until it is done, and where they have cores of their own
// they share its arithmetic and copies (`Crew`). So there is one thread a process in every exchange
// between processes, bytes between processes do not grow with the devices of a process, and a
// process with more devices than cores switches threads once a collective.
//
// Processes of one host exchange messages by broadcast rings in shared memory. Processes of
// different hosts have a link, which is made when it is first used.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/futex_wait.h"
#include "base/types.h"
#include "core/crew.h"
#include "transport/link.h"
#include "transport/shm/broadcast_ring.h"

namespace lockstep {

class Job;

// The ranks of one process, ascending.
struct Group {
  int process;
  int host;  // its index in Clique::hosts
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

  // The members that wait; for the leader.
  Crew& crew() { return crew_; }

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
  Crew crew_;
};

// What a layer above keeps for a clique.
class CliqueAttachment {
 public:
  virtual ~CliqueAttachment() = default;
};

class Clique {
 public:
  Clique(Job& job, std::vector<int> devices, const std::vector<int>& processes);

  int size() const { return static_cast<int>(devices_.size()); }
  const std::vector<int>& devices() const { return devices_; }
  const std::vector<Group>& groups() const { return groups_; }
  const Group& group(int index) const { return groups_[static_cast<std::size_t>(index)]; }
  int self() const { return self_; }  // index of this process's group; -1 when it has no rank here
  // The groups of each host, by index, ascending; the hosts in the order of their first groups.
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  int self_host() const { return group(self_).host; }
  // Processes of a host.
  std::size_t fewest_of_a_host() const { return fewest_of_a_host_; }
  std::size_t most_of_a_host() const { return most_of_a_host_; }
  // The groups of this host. What follows counts them from 0: `local` is an index in this list.
  const std::vector<int>& locals() const { return hosts_[static_cast<std::size_t>(self_host())]; }
  int local_self() const { return local_self_; }

  std::size_t max_local() const { return max_local_; }  // the most ranks of a process
  std::size_t capacity() const { return capacity_; }    // of a message between processes of a host
  std::size_t link_capacity() const { return link_capacity_; }
  Job& job() const { return job_; }
  LocalGroup& local_group() { return *local_group_; }

  // What point-to-point messages keep for this process, an object for all of its ranks: made at the
  // first call, and destroyed with the clique.
  template <typename Attachment>
  Attachment& attached() {
    std::call_once(attach_, [this] { attachment_ = std::make_unique<Attachment>(*this); });
    return static_cast<Attachment&>(*attachment_);
  }
  // Memory for them that the processes of this host share, zeros at first: a counter for each rank
  // of this host, and a word for each ordered pair of these.
  std::byte* pair_memory() const { return pair_memory_; }
  static std::size_t pair_memory_bytes(std::size_t ranks) {
    return ranks * sizeof(Counter) + ranks * ranks * sizeof(std::uint64_t);
  }

  // The broadcast rings of a process of this host. Every collective sends its first message of a
  // chunk on the partials ring, and what it has computed or received for others on the results
  // ring. Not where this process is alone on its host.
  BroadcastRing& partials(int local) { return partials_[static_cast<std::size_t>(local)]; }
  BroadcastRing& results(int local) { return results_[static_cast<std::size_t>(local)]; }
  // The link to and from the process of this group, which is on another host.
  Link& link(int group);
  // Messages sent to other hosts so far. Between two collectives.
  std::size_t messages_sent() const;
  // Memory for the leader, until its next call. Its content is anything.
  std::byte* scratch(std::size_t bytes);

  // "8 devices: 0, 1, 2048, ..." for errors.
  std::string describe() const;
  std::uint64_t id() const { return id_; }
  int member_of(int rank) const { return member_of_[static_cast<std::size_t>(rank)]; }

  // Whether all processes of the clique can read one another's memory; unknown at first. For the
  // leader.
  std::optional<bool>& single_copy() { return single_copy_; }

 private:
  void find_hosts();
  // Memory that the processes of this host share: `common`, and so many bytes for the rings of each
  // process, which that process places.
  struct Region {
    std::byte* common;
    std::byte* rings;
  };
  Region shared_memory(std::size_t common, std::size_t processes, std::size_t of_process);
  std::uint64_t find_or_claim(std::size_t placed, std::size_t bytes);
  void make_rings();
  std::size_t ring_bytes() const;

  Job& job_;
  std::vector<int> devices_;
  std::uint64_t id_;  // a hash of the devices
  std::vector<Group> groups_;
  std::vector<int> member_of_;  // rank -> index in its group
  std::vector<std::vector<int>> hosts_;
  int self_ = -1;
  int local_self_ = 0;
  std::size_t fewest_of_a_host_ = 0;
  std::size_t most_of_a_host_ = 0;
  std::size_t max_local_ = 0;
  std::size_t capacity_ = 0;
  std::size_t link_capacity_ = 0;
  std::optional<bool> single_copy_;
  std::vector<std::byte> private_memory_;
  std::vector<BroadcastRing> partials_;
  std::vector<BroadcastRing> results_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::vector<std::unique_ptr<Link>> links_;  // by group; null before the first use
  std::unique_ptr<LocalGroup> local_group_;
  std::byte* pair_memory_ = nullptr;
  std::once_flag attach_;
  std::unique_ptr<CliqueAttachment> attachment_;
};

}  // namespace lockstep
