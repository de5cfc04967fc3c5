#include "control/network/roster.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace lockstep {

Roster::Roster(std::vector<bool> is_remote, int num_agents, int process, std::uint64_t nonce,
               const std::vector<std::string>& labels, const Arena& arena, bool encrypts,
               std::uint32_t connections, std::vector<bool> deferred)
    : is_remote_(std::move(is_remote)),
      first_agent_(static_cast<int>(is_remote_.size()) - num_agents),
      process_(process),
      nonce_(nonce),
      labels_(labels),
      arena_(arena),
      encrypts_(encrypts),
      connections_(connections),
      deferred_(std::move(deferred)),
      open_(is_remote_.size()) {}

std::ptrdiff_t Roster::num_expected() const {
  std::ptrdiff_t sum = 0;
  for (std::size_t i = 0; i < is_remote_.size(); ++i)
    if (is_remote_[i]) sum += connections(static_cast<int>(i));
  return sum;
}

int Roster::admit(const Frame& greeting, const std::function<void(int)>& accept) {
  if ((greeting.number & ~(Frame::kUnencrypted | Frame::kHasLeft)) != Frame::kVersion)
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
  const int process = static_cast<int>(greeting.index);
  const std::uint32_t which = greeting.connection(), count = connections(process);
  if (greeting.connections() != count)
    throw Error("its number of connections to each process is " +
                std::to_string(greeting.connections()) + ", and that of this process " +
                std::to_string(count) +
                ": LOCKSTEP_CONNECTIONS has to be the same for all processes");
  if (which >= count) throw Error("it opens more connections than it says");
  std::lock_guard lock(mutex_);
  std::uint32_t& open = open_[greeting.index];
  if ((open >> which & 1) != 0) throw Error("it says to be a process that has connected already");
  if (accept) accept(process);
  open |= 1u << which;
  changed_.notify_all();
  return process;
}

bool Roster::is_whole(int process) const {
  return open_[static_cast<std::size_t>(process)] + 1 == 1u << connections(process);
}

std::vector<int> Roster::missing(bool agents) const {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(open_.size()); ++i)
    if (is_remote_[static_cast<std::size_t>(i)] && !is_deferred(i) && is_agent(i) == agents &&
        !is_whole(i))
      found.push_back(i);
  return found;
}

bool Roster::is_complete() {
  std::lock_guard lock(mutex_);
  for (int i = 0; i < static_cast<int>(open_.size()); ++i)
    if (is_remote_[static_cast<std::size_t>(i)] && !is_whole(i)) return false;
  return true;
}

bool Roster::has_greeted(int process) {
  std::lock_guard lock(mutex_);
  return open_[static_cast<std::size_t>(process)] != 0;
}

bool Roster::has_connected(int process) {
  std::lock_guard lock(mutex_);
  return is_whole(process);
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
