#include "core/clique.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "core/job.h"

namespace lockstep {
namespace {

constexpr std::size_t kMinMessage = 64 << 10;
// A message of this size stays in the second-level cache between its writer and its readers.
constexpr std::size_t kHostMessage = 256 << 10;
// Room for all broadcast rings of one clique and host, as a multiple of the largest message.
constexpr std::size_t kRingBudget = 64;
// Bytes for what the other hosts send to one process in one clique, while none of it is released.
constexpr std::size_t kLinkBudget = std::size_t{256} << 20;
// A chunk that crosses hosts is larger than one that stays in the caches of a host.
constexpr std::size_t kCrossingMessage = 512 << 10;

std::uint64_t hash(const std::vector<int>& devices) {
  std::uint64_t value = 0xcbf29ce484222325;  // FNV-1a
  for (const int device : devices)
    for (int shift = 0; shift < 32; shift += 8)
      value = (value ^ ((static_cast<std::uint32_t>(device) >> shift) & 0xff)) * 0x100000001b3;
  return value == 0 ? 1 : value;
}

std::string join(const std::vector<int>& numbers) {
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(numbers.size(), kShown); ++i)
    text += (i ? ", " : "") + std::to_string(numbers[i]);
  return numbers.size() > kShown ? text + ", ..." : text;
}

std::size_t ring_capacity(std::size_t processes, std::size_t largest) {
  const std::size_t share = kRingBudget * largest / (2 * BroadcastRing::kDepth * processes);
  return std::clamp(share, kMinMessage, largest) / 4096 * 4096;
}

}  // namespace

LocalGroup::LocalGroup(Job& job, std::vector<int> devices)
    : job_(job),
      devices_(std::move(devices)),
      crew_(devices_.size() > 1 ? job.sharing_spin() : std::chrono::nanoseconds(0)) {
  for (Round& round : rounds_) {
    round.calls.resize(devices_.size());
    round.present = std::vector<std::atomic<bool>>(devices_.size());
  }
}

void LocalGroup::run(int member, std::uint32_t sequence, const Call& call, const Work& work) {
  // A rank that gives up a round has left it for good: no round can be complete any more.
  for (const Round& round : rounds_)
    if (round.state.load() == Round::kAbandoned) throw Error(job_.arena().abort_text());
  Round& round = rounds_[sequence % 2];
  const auto index = static_cast<std::size_t>(member);
  round.calls[index] = &call;
  round.present[index].store(true, std::memory_order_relaxed);
  if (round.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == devices_.size())
    lead(round, sequence, work);
  else
    wait_for_leader(round, member, sequence, call);
  if (!round.error.empty()) throw Error(round.error);
}

void LocalGroup::lead(Round& round, std::uint32_t sequence, const Work& work) {
  std::uint32_t gathering = Round::kGathering;
  if (!round.state.compare_exchange_strong(gathering, Round::kRunning))
    throw Error(job_.arena().abort_text());  // a member gave up waiting and took its call along
  round.error.clear();
  try {
    check_same(round.calls, sequence);
    work(round.calls, sequence);
  } catch (const Divergence& error) {
    round.error = job_.diverged(error.what());
  } catch (const Late& error) {
    round.error = job_.timed_out(error.what());
  } catch (const std::exception& error) {
    // The peers are in the middle of this collective; they must not wait for what will not come.
    round.error = job_.failed(error.what());
  }
  for (auto& present : round.present) present.store(false, std::memory_order_relaxed);
  round.arrived.store(0, std::memory_order_relaxed);
  round.state.store(Round::kGathering, std::memory_order_relaxed);
  done_.advance();
  crew_.release();
}

void LocalGroup::check_same(std::span<const Call* const> calls, std::uint32_t sequence) const {
  const Signature first = signature_of(*calls[0], sequence);
  for (std::size_t i = 1; i < calls.size(); ++i) {
    const Signature other = signature_of(*calls[i], sequence);
    if (!other.agrees(first))
      throw Divergence("lockstep: the devices of " + job_.label(job_.process()) +
                       " are in different collectives: device " + std::to_string(devices_[0]) +
                       " called " + describe(first) + "; device " + std::to_string(devices_[i]) +
                       " called " + describe(other) + hint_of(first, other));
  }
}

void LocalGroup::wait_for_leader(Round& round, int member, std::uint32_t sequence,
                                 const Call& call) {
  // Abort does not end this wait by itself: once the leader runs it uses this call's buffers.
  Deadline deadline(job_.timeout_seconds(), call.entered);
  const auto spin = job_.sibling_spin(static_cast<int>(devices_.size()));
  for (;;) {
    WaitLimits limits{&job_.arena().header().abort_state, deadline, spin, &job_.wake_up()};
    Crew::Helper helper(crew_, done_, sequence + 1, limits);
    if (wait_until(done_, sequence + 1, limits, &helper) == WaitResult::kReached) return;
    // The text first: a member that comes later finds it with the abandoned round.
    const bool gathers = round.state.load() == Round::kGathering;
    if (gathers && deadline.passed() && !job_.arena().aborted())
      job_.timed_out("lockstep: " + std::string(name_of(call.op)) + " of " +
                     std::to_string(call.count) + " x " + name_of(call.dtype) + ": device " +
                     std::to_string(devices_[static_cast<std::size_t>(member)]) + " of " +
                     job_.label(job_.process()) + " waited " + job_.timeout_text() +
                     " for other devices of its own process: " + not_arrived(round) +
                     " did not call it.");
    if (done_.reached(sequence + 1)) return;
    std::uint32_t gathering = Round::kGathering;
    if (!round.state.compare_exchange_strong(gathering, Round::kAbandoned) &&
        gathering == Round::kRunning) {
      // The leader has the deadline and the abort flag before it, and ends.
      wait_until(done_, sequence + 1, WaitLimits{&kNeverAborted, Deadline(0), spin});
      return;
    }
    throw Error(job_.arena().abort_text());
  }
}

std::string LocalGroup::not_arrived(const Round& round) const {
  std::vector<int> missing;
  for (std::size_t i = 0; i < devices_.size(); ++i)
    if (!round.present[i].load(std::memory_order_relaxed)) missing.push_back(devices_[i]);
  return join(missing);
}

Clique::Clique(Job& job, std::vector<int> devices, const std::vector<int>& processes)
    : job_(job), devices_(std::move(devices)), id_(hash(devices_)) {
  for (int rank = 0; rank < size(); ++rank) {
    const int process = processes[static_cast<std::size_t>(rank)];
    auto group = std::ranges::find(groups_, process, &Group::process);
    if (group == groups_.end()) group = groups_.insert(groups_.end(), Group{process, 0, {}});
    member_of_.push_back(static_cast<int>(group->ranks.size()));
    group->ranks.push_back(rank);
    max_local_ = std::max(max_local_, group->ranks.size());
  }
  const auto self = std::ranges::find(groups_, job.process(), &Group::process);
  if (self == groups_.end())
    throw Error("lockstep: " + job.label(job.process()) + " has no device in the group of " +
                describe() + ".");
  self_ = static_cast<int>(self - groups_.begin());
  std::vector<int> own;
  for (const int rank : self->ranks) own.push_back(devices_[static_cast<std::size_t>(rank)]);
  local_group_ = std::make_unique<LocalGroup>(job, std::move(own));

  find_hosts();
  make_rings();
  job.recorder().add_clique(id_, devices_);
}

void Clique::find_hosts() {
  std::vector<int> found;  // the job's number of each host
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const int host = job_.host_of(groups_[i].process);
    const auto at = std::ranges::find(found, host) - found.begin();
    if (at == std::ssize(found)) {
      found.push_back(host);
      hosts_.emplace_back();
    }
    groups_[i].host = static_cast<int>(at);
    hosts_[static_cast<std::size_t>(at)].push_back(static_cast<int>(i));
  }
  local_self_ = static_cast<int>(std::ranges::find(locals(), self_) - locals().begin());
  fewest_of_a_host_ = most_of_a_host_ = hosts_[0].size();
  for (const auto& host : hosts_) {
    fewest_of_a_host_ = std::min(fewest_of_a_host_, host.size());
    most_of_a_host_ = std::max(most_of_a_host_, host.size());
  }
}

// Lays out the memory that the processes of this host share: what pairs of ranks need, and two
// rings of each process, in the order of the groups. The sizes of messages are the same in all
// processes of the clique.
void Clique::make_rings() {
  const bool crosses = hosts_.size() > 1;
  capacity_ = ring_capacity(most_of_a_host_, crosses ? kCrossingMessage : kHostMessage);
  link_capacity_ =
      std::clamp(kLinkBudget / (Link::kDepth * groups_.size()), kMinMessage, kCrossingMessage) /
      4096 * 4096;
  // What comes from another host may be handed on in one message of shared memory.
  if (most_of_a_host_ > 1) link_capacity_ = std::min(link_capacity_, capacity_);
  links_.resize(groups_.size());
  std::size_t ranks = 0;
  for (const int group : locals()) ranks += this->group(group).ranks.size();
  const std::size_t count = locals().size() > 1 ? locals().size() : 0;
  const std::size_t of_process = Arena::whole_pages(2 * ring_bytes());
  const Region region = shared_memory(pair_memory_bytes(ranks), count, of_process);
  for (std::size_t local = 0; local < count; ++local) {
    std::byte* next = region.rings + local * of_process;
    for (auto* rings : {&partials_, &results_}) {
      rings->emplace_back(next, static_cast<int>(count), capacity_, static_cast<int>(local),
                          local_self_);
      next += ring_bytes();
    }
  }
  pair_memory_ = region.common;
}

std::size_t Clique::ring_bytes() const {
  return (BroadcastRing::footprint(static_cast<int>(locals().size()), capacity_) + 63) / 64 * 64;
}

Link& Clique::link(int index) {
  auto& link = links_[static_cast<std::size_t>(index)];
  if (!link) {
    const int process = group(index).process;
    link =
        std::make_unique<Link>(job_.transport(process), ChannelId{id_, 0, process}, link_capacity_);
  }
  return *link;
}

std::size_t Clique::messages_sent() const {
  std::size_t sent = 0;
  for (const auto& link : links_) sent += link ? link->sent() : 0;
  return sent;
}

std::byte* Clique::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

std::string Clique::describe() const {
  return std::to_string(devices_.size()) + " devices (" + join(devices_) + ")";
}

Clique::Region Clique::shared_memory(std::size_t common, std::size_t processes,
                                     std::size_t of_process) {
  if (locals().size() == 1) {
    private_memory_.resize(common + 64);
    auto* raw = private_memory_.data();
    return {raw + (64 - reinterpret_cast<std::uintptr_t>(raw) % 64) % 64, nullptr};
  }
  const std::size_t preamble = (sizeof(std::int32_t) * (devices_.size() + 1) + 63) / 64 * 64;
  const std::size_t rings = Arena::whole_pages(preamble + common);
  Arena& arena = job_.arena();
  const std::uint64_t offset = find_or_claim(rings, rings + processes * of_process);
  try {
    arena.place(offset + rings + static_cast<std::size_t>(local_self_) * of_process, of_process);
  } catch (const Error& error) {
    throw Error(job_.failed(error.what()));
  }
  return {arena.at(offset) + preamble, arena.at(offset) + rings};
}

// The clique's part of the arena. The first word of it is the number of its devices, then come
// their ids: two groups whose hashes collide must not share memory. The process that finds none
// claims it, and places its first `placed` bytes.
std::uint64_t Clique::find_or_claim(std::size_t placed, std::size_t bytes) {
  Arena& arena = job_.arena();
  auto& directory = arena.header().directory;
  for (std::size_t probe = 0; probe < directory.size(); ++probe) {
    auto& entry = directory[(id_ + probe) % directory.size()];
    std::uint64_t found = 0;
    if (entry.key.compare_exchange_strong(found, id_)) {
      try {
        const std::uint64_t offset = arena.claim(bytes);
        arena.place(offset, placed);
        auto* ids = reinterpret_cast<std::int32_t*>(arena.at(offset));
        ids[0] = size();
        std::ranges::copy(devices_, ids + 1);
        entry.offset.store(offset, std::memory_order_release);
        return offset;
      } catch (const Error& error) {
        throw Error(job_.failed(error.what()));
      }
    }
    if (found != id_) continue;
    Deadline deadline(30);
    while (entry.offset.load(std::memory_order_acquire) == 0) {
      if (arena.aborted()) throw Error(arena.abort_text());
      if (deadline.passed())
        throw Error("lockstep: another process began to set up the group of " + describe() +
                    " and has not finished in 30 s; it may have been stopped or killed.");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const auto* ids = reinterpret_cast<const std::int32_t*>(arena.at(entry.offset.load()));
    if (ids[0] == size() && std::equal(devices_.begin(), devices_.end(), ids + 1))
      return entry.offset.load();
  }
  throw Error("lockstep: more than " + std::to_string(directory.size()) +
              " different device groups in one job.");
}

}  // namespace lockstep
