#include "transport/tcp/roster.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep {

Roster::Roster(std::vector<bool> is_remote, int num_agents, int process, std::uint64_t nonce,
               const std::vector<std::string>& labels, const Arena& arena, bool encrypts)
    : is_remote_(std::move(is_remote)),
      first_agent_(static_cast<int>(is_remote_.size()) - num_agents),
      process_(process),
      nonce_(nonce),
      labels_(labels),
      arena_(arena),
      encrypts_(encrypts),
      has_connected_(is_remote_.size()) {}

std::ptrdiff_t Roster::num_remote() const { return std::ranges::count(is_remote_, true); }

int Roster::admit(const Frame& greeting, const std::function<void(int)>& accept) {
  if ((greeting.number & ~Frame::kUnencrypted) != Frame::kVersion)
    throw Error("it runs another version of Lockstep");
  if (((greeting.number & Frame::kUnencrypted) == 0) != encrypts_)
    throw Error(std::string("it ") + (encrypts_ ? "does not encrypt" : "encrypts") +
                " what it sends, and this process " + (encrypts_ ? "does" : "does not") +
                ": LOCKSTEP_ENCRYPTION has to be the same for all processes");
  if (greeting.clique != nonce_) throw Error("it belongs to another job");
  // A host in between could redirect a connection to another process than it was made for.
  if (greeting.to != static_cast<std::uint32_t>(process_))
    throw Error("it looks for another process");
  if (greeting.index >= is_remote_.size() || !is_remote_[greeting.index])
    throw Error("it says to be a process that is not of another host");
  std::lock_guard lock(mutex_);
  if (has_connected_[greeting.index])
    throw Error("it says to be a process that has connected already");
  if (accept) accept(static_cast<int>(greeting.index));
  has_connected_[greeting.index] = true;
  changed_.notify_all();
  return static_cast<int>(greeting.index);
}

std::vector<int> Roster::missing(bool agents) const {
  std::vector<int> found;
  for (std::size_t i = 0; i < has_connected_.size(); ++i)
    if (is_remote_[i] && !has_connected_[i] && is_agent(static_cast<int>(i)) == agents)
      found.push_back(static_cast<int>(i));
  return found;
}

bool Roster::is_complete() {
  std::lock_guard lock(mutex_);
  return missing(false).empty() && missing(true).empty();
}

void Roster::wait_for_processes(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  const auto all_connected = [&] { return missing(false).empty(); };
  while (!changed_.wait_for(lock, std::chrono::milliseconds(50), all_connected)) {
    if (arena_.aborted()) throw Error(arena_.abort_text());
    if (Clock::now() < end) continue;
    std::string names;
    for (const int process : missing(false))
      names += (names.empty() ? "" : ", ") + labels_[static_cast<std::size_t>(process)];
    throw Error("lockstep: " + labels_[static_cast<std::size_t>(process_)] +
                " waited in vain for connections from " + names +
                ". Does a firewall let TCP through between the hosts?");
  }
}

std::vector<int> Roster::wait_for_agents(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [&] { return missing(true).empty(); });
  return missing(true);
}

}  // namespace lockstep
