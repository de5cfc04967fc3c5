// Jobs of several processes for tests, in two ways that take the same bodies.
//
// kThreads: every process of the job is a Job of its own in this process, with its own mapping of
// the arena (under ThreadSanitizer they share one: see JobOptions::arena). kForked: every process
// is a forked child, which may be killed. Each rank is a thread in both. The same with several
// hosts: kHosts, every process of kThreads is alone on its host; kForkedHosts, two of kForked share
// one. With UCX between hosts all processes are forked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/communicator.h"
#include "core/job.h"
#include "system.h"

namespace lockstep::testing {

// Cases that repeat what the first ones test: `few` of them where LOCKSTEP_TEST_SAMPLE is set.
template <typename T>
std::vector<T> sample(std::vector<T> all, std::size_t few) {
  if (std::getenv("LOCKSTEP_TEST_SAMPLE") != nullptr && all.size() > few)
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(few), all.end());
  return all;
}
// How often a test is repeated, likewise.
inline int rounds(int all, int few) {
  return std::getenv("LOCKSTEP_TEST_SAMPLE") != nullptr ? few : all;
}

// The jobs of tests have this nonce.
inline constexpr std::uint64_t kNonce = 4711;

enum class Harness { kThreads, kForked, kHosts, kForkedHosts };
inline constexpr Harness kBoth[] = {Harness::kThreads, Harness::kForked};
inline constexpr Harness kOfSeveralHosts[] = {Harness::kHosts, Harness::kForkedHosts};
inline constexpr Harness kAll[] = {Harness::kThreads, Harness::kForked, Harness::kHosts,
                                   Harness::kForkedHosts};
inline bool is_forked(Harness harness) {
  return harness == Harness::kForked || harness == Harness::kForkedHosts;
}
// How many processes of the job share a host; 0: all.
inline int processes_of_host(Harness harness) {
  return harness == Harness::kHosts ? 1 : harness == Harness::kForkedHosts ? 2 : 0;
}

// Which process owns each rank's device. Device ids are far apart, as jaxlib's are.
struct Layout {
  const char* name;
  std::vector<int> process_of;

  int ranks() const { return static_cast<int>(process_of.size()); }
  int processes() const;
  std::vector<int> devices() const;
  std::vector<int> ranks_of(int process) const;
};
inline constexpr int kDeviceStride = 2048;

// 1x1 to 4x1, processes of unequal size, and ranks that alternate between processes. Under
// LOCKSTEP_TEST_SAMPLE five of them: one process, one rank each, several, unequal, another order.
std::vector<Layout> all_layouts();
const Layout& layout(const char* name);
Layout one_rank_each(int processes);

struct Options {
  Harness harness = Harness::kThreads;
  double timeout_seconds = 60;
  bool oversubscribed = false;
  int cores = 2;
  bool single_copy = true;
  bool encrypt = true;          // between hosts
  int connections = 1;          // to each process of another host
  std::string algorithms = {};  // likewise: see collectives.h
  // The host of each process, from 0 on, each new one the next number; empty: as the harness says.
  std::vector<int> hosts = {};
  int unreadable = -1;  // a process that takes no part in single copies
  std::size_t single_copy_from = JobOptions{}.single_copy_from;
};

// What a body gets: its rank of the job. `mix` makes bits of its results part of the outcome.
class Rank {
 public:
  Rank(const Layout& layout, Job& job, int rank) : layout(layout), job(job), index(rank) {}

  const Layout& layout;
  Job& job;
  const int index;

  int size() const { return layout.ranks(); }
  int process() const { return job.process(); }
  // This rank's end of the clique of these ranks (of all ranks: `all`). Asked for once per clique.
  std::unique_ptr<Communicator> end(const std::vector<int>& ranks);
  std::unique_ptr<Communicator> all();
  void mix(const void* data, std::size_t bytes);
  std::uint64_t digest() const { return digest_; }

 private:
  std::uint64_t digest_ = 0xcbf29ce484222325;
};

// A number that the test has in common with the processes of its job, forked or not.
class SharedCount {
 public:
  SharedCount();
  ~SharedCount();
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;

  void add(std::size_t more) { count_->fetch_add(more); }
  std::size_t get() const { return count_->load(); }

 private:
  std::atomic<std::size_t>* count_;
};

// Responds to the requests of a process while it lives, as `respond` says for each text; nothing
// says that it does not respond.
class Watchdog {
 public:
  using Respond = std::function<std::optional<Requests::Response>(const std::string& text)>;
  Watchdog(Job& job, Respond respond);

 private:
  std::jthread thread_;
};

// Makes no call until the job has failed.
void stay_away(Rank& rank);

struct Outcome {
  std::string error;  // what the body threw, "" for nothing, "killed" for a process that was
  std::uint64_t digest = 0;
};

// Runs the body on every rank, returns what became of each. A body's CHECK that fails ends the job
// and is thrown here. Throws CheckFailed as well when a forked process does not end.
std::vector<Outcome> run_job(const Layout& layout, const Options& options,
                             const std::function<void(Rank&)>& body);

// The same, where no rank may throw. Returns the digests.
std::vector<std::uint64_t> run_healthy(const Layout& layout, const Options& options,
                                       const std::function<void(Rank&)>& body);

}  // namespace lockstep::testing
