#include "harness.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>

#include "check.h"
#include "collectives/collectives.h"

#if defined(__SANITIZE_THREAD__)
#define LOCKSTEP_SHARE_MAPPING true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOCKSTEP_SHARE_MAPPING true
#endif
#endif
#ifndef LOCKSTEP_SHARE_MAPPING
#define LOCKSTEP_SHARE_MAPPING false
#endif

namespace lockstep::testing {
namespace {

constexpr auto kMaxJobTime = std::chrono::seconds(200);

// A rank leaves its outcome here, in memory that forked processes share with their parent.
struct Slot {
  int pid;  // of a forked process, from its start
  bool ended;
  bool check_failed;
  std::uint64_t digest;
  char error[1400];
};

void* shared_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw CheckFailed("no memory for what a job shares with its test");
  return memory;
}

class Board {
 public:
  explicit Board(int ranks) : bytes_(sizeof(Slot) * static_cast<std::size_t>(ranks)) {
    slots_ = static_cast<Slot*>(shared_memory(bytes_));
  }
  ~Board() { munmap(slots_, bytes_); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  Slot& operator[](int rank) { return slots_[rank]; }

 private:
  std::size_t bytes_;
  Slot* slots_;
};

struct TestJob {
  const Layout& layout;
  const Options& options;
  const std::function<void(Rank&)>& body;
  Board board;
  std::vector<Descriptor> arenas;
  std::vector<Listener> listeners;

  TestJob(const Layout& where, const Options& how, const std::function<void(Rank&)>& what)
      : layout(where), options(how), body(what), board(where.ranks()) {
    for (int process = 0; process < layout.processes(); ++process) {
      if (host_of(process) == arenas.size()) arenas.emplace_back(Arena::create(kNonce));
      if (has_several_hosts()) listeners.push_back(listen_anywhere());
    }
  }

  std::size_t host_of(int process) const {
    if (!options.hosts.empty())
      return static_cast<std::size_t>(options.hosts[static_cast<std::size_t>(process)]);
    const int together = processes_of_host(options.harness);
    return static_cast<std::size_t>(together == 0 ? 0 : process / together);
  }

  // A process of a job has one context of UCX, and UCX 1.13 has crashed with one for each of 16
  // threads.
  bool is_forked() const {
    return testing::is_forked(options.harness) || (has_several_hosts() && !ucx_libraries().empty());
  }

  bool has_several_hosts() const {
    return !options.hosts.empty() || processes_of_host(options.harness) != 0;
  }

  EndpointOptions endpoint(int process) {
    EndpointOptions made;
    if (arenas.size() == 1) return made;
    for (int other = 0; other < layout.processes(); ++other)
      made.addresses.push_back(host_of(other) == host_of(process)
                                   ? ""
                                   : listeners[static_cast<std::size_t>(other)].address);
    made.pids = pids_of_host(process);
    made.listener = listeners[static_cast<std::size_t>(process)].fd.get();
    made.key.assign(32, std::byte{7});
    made.tls_library = "libssl.so.3";
    made.encrypt = options.encrypt;
    made.connections = options.connections;
    return made;
  }

  std::atomic_ref<int> pid_of(int process) {
    return std::atomic_ref(board[layout.ranks_of(process).front()].pid);
  }

  // The pids of the others of this host; all have been forked, and soon know it.
  std::vector<int> pids_of_host(int process) {
    std::vector<int> pids(static_cast<std::size_t>(layout.processes()));
    for (int other = 0; other < layout.processes(); ++other) {
      if (!is_forked() || other == process || host_of(other) != host_of(process)) continue;
      while (pid_of(other) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pids[static_cast<std::size_t>(other)] = pid_of(other);
    }
    return pids;
  }

  std::unique_ptr<Job> make_job(int process, std::shared_ptr<Arena> mapping) {
    JobOptions made;
    made.process = process;
    made.arena_fd = arenas[host_of(process)].get();
    made.endpoint = endpoint(process);
    made.ucx_libraries = ucx_libraries();
    made.nonce = kNonce;
    made.timeout_seconds = options.timeout_seconds;
    made.cores = options.cores;
    made.oversubscribed = options.oversubscribed;
    made.single_copy = options.single_copy && process != options.unreadable;
    made.single_copy_from = options.single_copy_from;
    made.arena = std::move(mapping);
    for (int i = 0; i < layout.processes(); ++i) {
      made.labels.push_back("process " + std::to_string(i));
      made.hosts.push_back(static_cast<int>(host_of(i)));
    }
    made.algorithms = prescribed_algorithms(options.algorithms);
    auto job = std::make_unique<Job>(std::move(made));
    job->set_devices(layout.devices(), layout.process_of);
    return job;
  }

  // Null when the others have failed before this process has met them: its ranks raise what they
  // do.
  std::unique_ptr<Job> start_job(int process, std::shared_ptr<Arena> mapping) {
    try {
      return make_job(process, std::move(mapping));
    } catch (const std::exception& error) {
      for (const int rank : layout.ranks_of(process)) {
        std::snprintf(board[rank].error, sizeof(board[rank].error), "%s", error.what());
        board[rank].ended = true;
      }
      return nullptr;
    }
  }

  void run_rank(Job& job, int index) {
    Slot& slot = board[index];
    Rank rank(layout, job, index);
    const auto keep = [&](const std::exception& error) {
      std::snprintf(slot.error, sizeof(slot.error), "%s", error.what());
    };
    try {
      body(rank);
    } catch (const CheckFailed& error) {
      keep(error);
      slot.check_failed = true;
      job.arena().abort(std::string("rank ") + std::to_string(index) + ": " + error.what());
    } catch (const std::exception& error) {
      keep(error);
    }
    slot.digest = rank.digest();
    slot.ended = true;
  }

  void start_ranks(Job& job, std::vector<std::jthread>& threads) {
    for (const int rank : layout.ranks_of(job.process()))
      threads.emplace_back([this, &job, rank] { run_rank(job, rank); });
  }

  void run_threads() {
    std::vector<std::shared_ptr<Arena>> mappings(arenas.size());
    for (std::size_t host = 0; LOCKSTEP_SHARE_MAPPING && host < arenas.size(); ++host)
      mappings[host] = std::make_shared<Arena>(arenas[host].get(), kNonce);
    std::vector<std::unique_ptr<Job>> jobs(static_cast<std::size_t>(layout.processes()));
    // At the same time: processes of several hosts wait for one another.
    in_threads(jobs.size(), [&](std::size_t i) {
      const int process = static_cast<int>(i);
      jobs[i] = start_job(process, mappings[host_of(process)]);
    });
    std::vector<std::jthread> threads;
    for (auto& job : jobs)
      if (job) start_ranks(*job, threads);
  }

  [[noreturn]] void run_child(int process) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no process behind
    pid_of(process) = getpid();
    int status = 0;
    try {
      const auto job = start_job(process, nullptr);
      std::vector<std::jthread> threads;
      if (job) start_ranks(*job, threads);
    } catch (const std::exception& error) {
      std::printf("  process %d of a job: %s\n", process, error.what());
      status = 1;
    }
    std::fflush(stdout);
    _exit(status);
  }

  void run_forked() {
    std::fflush(stdout);
    std::vector<pid_t> children;
    for (int process = 0; process < layout.processes(); ++process) {
      const pid_t child = fork();
      if (child == 0) run_child(process);
      children.push_back(child);
    }
    const auto end = std::chrono::steady_clock::now() + kMaxJobTime;
    std::string wrong;
    for (std::size_t i = 0; i < children.size(); ++i) wrong += reap(children[i], i, end);
    if (!wrong.empty()) throw CheckFailed(wrong);
  }

  static std::string reap(pid_t child, std::size_t process,
                          std::chrono::steady_clock::time_point end) {
    const std::string name = "process " + std::to_string(process);
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return name + " of the job did not end. ";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const bool expected =
        WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL;
    return expected ? "" : name + " of the job ended with status " + std::to_string(status) + ". ";
  }

  std::vector<Outcome> outcomes() {
    std::vector<Outcome> all;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Slot& slot = board[rank];
      if (slot.check_failed)
        throw CheckFailed(std::string(layout.name) + ", rank " + std::to_string(rank) + ": " +
                          slot.error);
      all.push_back({slot.ended ? slot.error : "killed", slot.digest});
    }
    return all;
  }
};

}  // namespace

int Layout::processes() const { return 1 + *std::ranges::max_element(process_of); }

std::vector<int> Layout::devices() const {
  std::vector<int> next(static_cast<std::size_t>(processes()));
  std::vector<int> ids;
  for (const int process : process_of)
    ids.push_back(process * kDeviceStride + next[static_cast<std::size_t>(process)]++);
  return ids;
}

std::vector<int> Layout::ranks_of(int process) const {
  std::vector<int> own;
  for (int rank = 0; rank < ranks(); ++rank)
    if (process_of[static_cast<std::size_t>(rank)] == process) own.push_back(rank);
  return own;
}

namespace {

const std::vector<Layout> kLayouts = {
    {"2x2", {0, 0, 1, 1}},
    {"3+1", {0, 0, 0, 1}},
    {"backwards", {2, 1, 1, 0, 2}},
    {"1x4", {0, 0, 0, 0}},
    {"2x1", {0, 1}},
    {"1x1", {0}},
    {"2x4", {0, 0, 0, 0, 1, 1, 1, 1}},
    {"3x2", {0, 0, 1, 1, 2, 2}},
    {"4x1", {0, 1, 2, 3}},
    {"interleaved", {0, 1, 0, 1}},
};

}  // namespace

std::vector<Layout> all_layouts() { return sample(kLayouts, 5); }

const Layout& layout(const char* name) {
  const auto found = std::ranges::find_if(
      kLayouts, [&](const Layout& one) { return std::strcmp(one.name, name) == 0; });
  if (found == kLayouts.end()) throw CheckFailed(std::string("no layout ") + name);
  return *found;
}

Layout one_rank_each(int processes) {
  std::vector<int> process_of(static_cast<std::size_t>(processes));
  std::iota(process_of.begin(), process_of.end(), 0);
  return {"one rank each", process_of};
}

std::unique_ptr<Communicator> Rank::end(const std::vector<int>& ranks) {
  const std::vector<int> ids = layout.devices();
  std::vector<int> devices;
  for (const int rank : ranks) devices.push_back(ids[static_cast<std::size_t>(rank)]);
  const auto position = std::ranges::find(ranks, index) - ranks.begin();
  return std::make_unique<Communicator>(job.clique(devices), static_cast<int>(position));
}

std::unique_ptr<Communicator> Rank::all() {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(rank);
  return end(ranks);
}

void Rank::mix(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  for (std::size_t at = 0; at < bytes; at += sizeof(digest_)) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, std::min(sizeof(word), bytes - at));
    digest_ = (digest_ ^ word) * 0x100000001b3;
    digest_ ^= digest_ >> 29;
  }
}

SharedCount::SharedCount() : count_(new (shared_memory(sizeof *count_)) std::atomic<std::size_t>) {}

SharedCount::~SharedCount() { munmap(count_, sizeof *count_); }

Watchdog::Watchdog(Job& job, Respond respond) {
  job.set_watched(true);
  thread_ = std::jthread([&job, respond = std::move(respond)](const std::stop_token& over) {
    for (; !over.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const auto request = job.requests().next();
      if (request.number == 0) continue;
      if (const auto response = respond(request.text))
        job.requests().respond(request.number, *response);
    }
  });
}

void stay_away(Rank& rank) {
  eventually([&] { return rank.job.arena().aborted(); }, "the failure of the job");
}

std::vector<Outcome> run_job(const Layout& layout, const Options& options,
                             const std::function<void(Rank&)>& body) {
  TestJob job(layout, options, body);
  job.is_forked() ? job.run_forked() : job.run_threads();
  return job.outcomes();
}

std::vector<std::uint64_t> run_healthy(const Layout& layout, const Options& options,
                                       const std::function<void(Rank&)>& body) {
  std::vector<std::uint64_t> digests;
  for (const Outcome& outcome : run_job(layout, options, body)) {
    if (!outcome.error.empty()) throw CheckFailed(std::string(layout.name) + ": " + outcome.error);
    digests.push_back(outcome.digest);
  }
  return digests;
}

}  // namespace lockstep::testing
