#include "world.h"

#include <iomanip>
#include <sstream>

#include "clique.h"
#include "error.h"

namespace lockstep {
namespace {

// Waking a sleeper on an idle core takes 60 us and more on virtual machines. A spin shorter than
// that never recovers from the first sleep: each side gives up just before the other one is awake.
constexpr std::chrono::microseconds kSpin{200};

}  // namespace

World::World(WorldOptions options)
    : options_(std::move(options)),
      arena_(options_.arena ? options_.arena
                            : std::make_shared<Arena>(options_.arena_fd, options_.nonce)),
      peers_(*arena_, options_.process, options_.labels, options_.single_copy) {}

World::~World() = default;

std::string World::timeout_text() const {
  std::ostringstream text;
  text << std::setprecision(15) << options_.timeout_seconds << " s";
  return text.str();
}

void World::set_devices(const std::vector<int>& ids, const std::vector<int>& processes) {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (processes[i] < 0 || processes[i] >= num_processes())
      throw Error("lockstep: device " + std::to_string(ids[i]) + " belongs to process " +
                  std::to_string(processes[i]) + ", but the job has " +
                  std::to_string(num_processes()) + " processes.");
    process_of_.emplace(ids[i], processes[i]);
  }
}

bool World::knows_devices() const {
  std::lock_guard lock(mutex_);
  return !process_of_.empty();
}

int World::process_of(int device) const {
  std::lock_guard lock(mutex_);
  const auto found = process_of_.find(device);
  return found == process_of_.end() ? -1 : found->second;
}

Clique& World::clique(const std::vector<int>& devices) {
  std::vector<int> processes;
  for (const int device : devices) {
    processes.push_back(process_of(device));
    if (processes.back() < 0)
      throw Error("lockstep: no process owns device " + std::to_string(device) + ".");
  }
  std::lock_guard lock(mutex_);
  auto& slot = cliques_[devices];
  if (!slot) slot = std::make_unique<Clique>(*this, devices, processes);
  return *slot;
}

std::chrono::nanoseconds World::process_spin() const {
  return options_.crowded ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(kSpin);
}

std::chrono::nanoseconds World::sibling_spin(int siblings) const {
  return siblings <= cores() && !options_.crowded ? std::chrono::nanoseconds(kSpin)
                                                  : std::chrono::nanoseconds(0);
}

}  // namespace lockstep
