// The processes and agents of other hosts that have to connect to this process, and those that
// have.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/futex_wait.h"
#include "transport/shm/segment.h"
#include "transport/tcp/frame.h"

namespace lockstep {

class Roster {
 public:
  // `is_remote`: for each process, whether it is on another host. The last `num_agents` are agents.
  // The references outlive this.
  Roster(std::vector<bool> is_remote, int num_agents, int process, std::uint64_t nonce,
         const std::vector<std::string>& labels, const Arena& arena, bool encrypts,
         std::uint32_t connections = 1, std::vector<bool> deferred = {});

  bool is_agent(int process) const { return process >= first_agent_; }
  int first_agent() const { return first_agent_; }
  std::size_t num_members() const { return is_remote_.size(); }
  // How many connections that process opens to this one. Agents send and receive no stripes.
  std::uint32_t connections(int process) const {
    return is_agent(process) || is_agent(process_) ? 1 : connections_;
  }
  // How many connections others open to this process.
  std::ptrdiff_t num_expected() const;

  // The process that greets. Throws Error unless it may connect and has not opened this connection
  // before.
  // `accept` is called before it counts as connected, and may throw Error as well.
  int admit(const Frame& greeting, const std::function<void(int)>& accept = {});
  bool is_complete();

  // Returns when all processes have connected that do so at the start. Throws Error naming those
  // that have not by `end`.
  void wait_for_processes(Clock::time_point end);
  // Whether this process has opened all of its connections, also after the start.
  bool has_connected(int process);
  // Whether the connections with that process are made when they are first needed.
  bool is_deferred(int process) const {
    const auto index = static_cast<std::size_t>(process);
    return index < deferred_.size() && deferred_[index];
  }
  // Whether it has opened a connection.
  bool has_greeted(int process);
  // The agents that have not connected by `end`.
  std::vector<int> wait_for_agents(Clock::time_point end);

 private:
  // What follows is under `mutex_`.
  bool is_whole(int process) const;
  std::vector<int> missing(bool agents) const;  // at the start

  const std::vector<bool> is_remote_;
  const int first_agent_;
  const int process_;
  const std::uint64_t nonce_;
  const std::vector<std::string>& labels_;
  const Arena& arena_;
  const bool encrypts_;
  const std::uint32_t connections_;  // of a process
  const std::vector<bool> deferred_;

  std::mutex mutex_;  // guards `open_`
  std::condition_variable changed_;
  std::vector<std::uint32_t> open_;  // of each process, a bit for each connection
};

}  // namespace lockstep
