// The one engine of a process, behind both interfaces: MPI (jaxlib) and C (Python).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/communicator.h"
#include "api/python.h"
#include "base/types.h"
#include "core/job.h"
#include "xla_probe/membership.h"

namespace lockstep {

class Engine {
 public:
  static Engine& instance();

  void set_callbacks(const lockstep_callbacks& callbacks);
  void initialize();  // MPI_Init_thread
  void start(JobOptions options);
  void fail(const std::string& text);
  void forbid(const std::string& text);
  Job* started() const;  // null before the first start
  std::uint32_t site() const { return strict_.load() ? callbacks_.site() : 0; }
  bool checks_programs() const { return check_programs_.load(std::memory_order_relaxed); }
  void set_checks(bool programs, bool strict);
  void set_no_members(const std::string& advice);
  Job& job();  // throws Error when there is none, or something has failed
  std::unique_ptr<Communicator> communicator(int color, int key);  // MPI_Comm_split

  // Whether a call has shown which program it belongs to. Once many have not, and none has, a line
  // on stderr says so.
  void note_origin(bool known);

  void count(Op op);
  // Counts a call that failed on a thread of XLA's own: the program gets the error where it reads
  // the result.
  void count_failure() { failures_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }
  // A thread of Python's begins and ends a call of jaxlib's.
  void enter_from_python() { python_threads_.fetch_add(1, std::memory_order_relaxed); }
  void leave_to_python() { python_threads_.fetch_sub(1, std::memory_order_relaxed); }
  int python_threads() const { return python_threads_.load(std::memory_order_relaxed); }
  void read_counts(std::uint64_t* counts) const {
    for (const auto& value : counts_) *counts++ = value.load(std::memory_order_relaxed);
  }

 private:
  Engine() = default;

  void retire_agent();

  mutable std::mutex mutex_;  // guards what follows; never held while a callback runs
  std::mutex requesting_;     // one request to Python at a time; taken before mutex_
  lockstep_callbacks callbacks_{};
  std::string failure_;
  std::string forbidden_;
  std::string no_members_;
  std::atomic<bool> check_programs_{false};
  std::atomic<bool> strict_{false};
  std::atomic<bool> origins_known_{false};
  std::atomic<int> unknown_origins_{0};
  std::vector<std::unique_ptr<Job>> jobs_;
  Job* job_ = nullptr;
  std::set<std::pair<std::vector<int>, int>> requested_;
  KeyChooser key_chooser_;
  std::array<std::atomic<std::uint64_t>, 5> counts_{};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<int> python_threads_{0};
};

}  // namespace lockstep
