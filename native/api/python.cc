#include "api/python.h"

#include "api/mpitrampoline/state.h"
#include "core/error.h"
#include "core/log.h"
#include "transport/shm/segment.h"
#include "xla_probe/vtables.h"

namespace lockstep {
namespace {

// How many calls may show nothing before the user is told.
constexpr int kUnknownOrigins = 200;

thread_local std::string last_error;

template <typename Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

// A text for a caller in C: it lives until this thread's next one.
const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

// Null without other hosts. Like its world it stays for good, whoever may be in it.
Network* network() {
  World* world = Engine::instance().started();
  return world == nullptr ? nullptr : world->network();
}

}  // namespace

Engine& Engine::instance() {
  // Never destroyed: XLA's threads may call in while the process exits.
  static auto* engine = new Engine;
  return *engine;
}

void Engine::set_callbacks(const lockstep_callbacks& callbacks) {
  std::lock_guard lock(mutex_);
  callbacks_ = callbacks;
}

void Engine::initialize() {
  lockstep_callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    if (world_ != nullptr && world_->network() != nullptr) world_->network()->end_notes();
    world_ = nullptr;  // an earlier world stays alive: communicators point into it
    failure_.clear();
    callbacks = callbacks_;
  }
  if (callbacks.start == nullptr)
    return fail(
        "lockstep: jaxlib has loaded the engine, but nobody has configured it. Put `import "
        "lockstep` before `import jax` in this program, or start it with `lockstep run`.");
  callbacks.start();
}

// For an agent, which has no jaxlib that would initialize it once more.
void Engine::retire_agent() {
  World* agent = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (world_ != nullptr && world_->is_agent()) std::swap(agent, world_);
  }
  if (agent != nullptr) agent->retire();
}

void Engine::start(WorldOptions options) {
  static std::once_flag once;  // jaxlib is loaded, where there is one
  std::call_once(once, [] { find_virtual_tables("/jaxlib/"); });
  retire_agent();
  auto world = std::make_unique<World>(std::move(options));
  std::lock_guard lock(mutex_);
  worlds_.push_back(std::move(world));
  world_ = worlds_.back().get();
  requested_.clear();
  world_->forbid(forbidden_);
}

void Engine::set_checks(bool programs, bool strict) {
  check_programs_.store(programs);
  std::lock_guard lock(mutex_);
  strict_.store(strict && callbacks_.site != nullptr);
}

void Engine::forbid(const std::string& text) {
  std::lock_guard lock(mutex_);
  forbidden_ = text;
  if (world_ != nullptr) world_->forbid(text);
}

World* Engine::started() const {
  std::lock_guard lock(mutex_);
  return world_;
}

void Engine::fail(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = text;
}

World& Engine::world() {
  std::lock_guard lock(mutex_);
  if (world_ == nullptr || !failure_.empty())
    throw Error(failure_.empty() ? "lockstep: the engine was not started." : failure_);
  return *world_;
}

std::unique_ptr<Communicator> Engine::communicator(int color, int key) {
  World& world = this->world();
  if (!world.knows_devices()) {
    std::lock_guard asking(asking_);
    if (!world.knows_devices()) callbacks_.devices();
    this->world();  // throws what the callback reported
  }
  const auto taken = [&](const DeviceList& list) {
    std::lock_guard lock(mutex_);
    return requested_.contains({list, key});
  };
  try {
    const DeviceList devices = decide_members(candidates(world, color, key), taken, color, key);
    auto communicator = std::make_unique<Communicator>(world.clique(devices), key);
    std::lock_guard lock(mutex_);
    requested_.insert({devices, key});
    return communicator;
  } catch (const std::exception& error) {
    // The others of the clique would wait for this process until their deadline.
    world.arena().abort(error.what());
    throw;
  }
}

// What the frames show; what the devices tell each other where the frames have never shown
// anything.
std::vector<DeviceList> Engine::candidates(World& world, int color, int key) {
  auto found = keys_on_stack(world, color, key, world.device_id_bytes());
  if (!found.empty()) frames_known_.store(true);
  if (frames_known_.load() || callbacks_.members == nullptr) return found;
  // Others would never come to what is forbidden here. XLA keeps this error for the group, so the
  // job fails, where a communicator that is there already refuses one collective only.
  world.check_allowed({});
  DeviceList members(world.num_devices());
  callbacks_.members(color, key, members.data());
  this->world();  // throws what the callback reported
  return {members};
}

void Engine::note_origin(bool known) {
  if (origins_known_.load(std::memory_order_relaxed)) return;
  if (known) return origins_known_.store(true, std::memory_order_relaxed);
  if (unknown_origins_.fetch_add(1, std::memory_order_relaxed) + 1 != kUnknownOrigins) return;
  const World* world = started();
  if (world != nullptr && world->process() == 0)
    log_or_drop(
        "lockstep: this jaxlib does not show which program a collective belongs to: if processes "
        "run different programs, and their collectives look alike, this is not noticed. `lockstep "
        "doctor` names the versions of jax that were tested.");
}

void Engine::count(Op op) {
  counts_[static_cast<std::size_t>(op)].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep

using lockstep::Engine;

extern "C" {

const char* lockstep_version() { return LOCKSTEP_VERSION; }
const char* lockstep_last_error() { return lockstep::last_error.c_str(); }

void lockstep_set_callbacks(const lockstep_callbacks* callbacks) {
  Engine::instance().set_callbacks(*callbacks);
}

void lockstep_fail(const char* text) { Engine::instance().fail(text); }

int lockstep_create_arena(std::uint64_t nonce) {
  int fd = -1;
  lockstep::guarded([&] { fd = lockstep::Arena::create(nonce); });
  return fd;
}

int lockstep_start(const lockstep_options* given) {
  return lockstep::guarded([&] {
    lockstep::WorldOptions options;
    options.process = given->process;
    const int members = given->num_processes + given->num_agents;
    options.labels.assign(given->labels, given->labels + members);
    options.network.num_agents = given->num_agents;
    options.arena_fd = given->arena_fd;
    options.nonce = given->nonce;
    options.timeout_seconds = given->timeout_seconds;
    options.cores = given->cores;
    options.oversubscribed = given->oversubscribed != 0;
    options.device_id_bytes = given->device_id_bytes;
    if (given->recorder != nullptr) options.recorder.path = given->recorder;
    if (given->host != nullptr) options.recorder.host = given->host;
    options.recorder.enabled = given->record != 0;
    options.recorder.attempt = given->attempt;
    Engine::instance().set_checks(given->check_programs != 0, given->strict != 0);
    options.single_copy = given->single_copy != 0;
    if (given->addresses != nullptr) {
      const auto* key = reinterpret_cast<const std::byte*>(given->key);
      options.network.addresses.assign(given->addresses, given->addresses + members);
      options.network.pids.assign(given->pids, given->pids + members);
      options.network.listener = given->listener;
      options.network.key.assign(key, key + given->key_bytes);
      options.network.tls_library = given->tls_library;
    }
    Engine::instance().start(std::move(options));
  });
}

int lockstep_set_devices(int count, const int* ids, const int* processes) {
  return lockstep::guarded([&] {
    Engine::instance().world().set_devices({ids, ids + count}, {processes, processes + count});
  });
}

int lockstep_virtual_tables() {
  const auto [clique_key, executor] = lockstep::virtual_tables();
  return (clique_key != 0 ? 1 : 0) + (executor != 0 ? 2 : 0);
}

int lockstep_frames_known() { return Engine::instance().frames_known(); }

void lockstep_counts(std::uint64_t counts[5]) { Engine::instance().read_counts(counts); }

void lockstep_abort(const char* text) {
  if (auto* world = Engine::instance().started()) world->arena().abort(text);
}

const char* lockstep_abort_text() {
  auto* world = Engine::instance().started();
  const bool failed = world != nullptr && world->arena().aborted();
  return lockstep::keep(failed ? world->arena().abort_text() : "");
}

void lockstep_forbid(const char* text) { Engine::instance().forbid(text == nullptr ? "" : text); }

void lockstep_leave(int state) {
  if (auto* world = Engine::instance().started())
    world->leave(static_cast<lockstep::Recorder::State>(state));
}

void lockstep_forked() {
  if (auto* network = lockstep::network()) network->abandon();
}

int lockstep_recorder_fd() {
  auto* world = Engine::instance().started();
  return world == nullptr ? -1 : world->recorder().fd();
}

const char* lockstep_recorder_problem() {
  auto* world = Engine::instance().started();
  return lockstep::keep(world == nullptr ? "" : world->recorder().problem());
}

int lockstep_alarm_fd() {
  auto* world = Engine::instance().started();
  return world == nullptr ? -1 : world->alarm().fd();
}

void lockstep_set_watched(int watched) {
  if (auto* world = Engine::instance().started()) world->set_watched(watched != 0);
}

const char* lockstep_request(std::uint64_t* number) {
  auto* world = Engine::instance().started();
  auto request = world == nullptr ? lockstep::Requests::Request{} : world->requests().next();
  *number = request.number;
  return lockstep::keep(std::move(request.text));
}

void lockstep_respond(std::uint64_t number, int response) {
  using Response = lockstep::Requests::Response;
  auto* world = Engine::instance().started();
  if (world == nullptr) return;
  world->requests().respond(number, response < 0    ? Response::kUnknown
                                    : response == 0 ? Response::kNo
                                                    : Response::kYes);
}

const char* lockstep_listens_at() {
  auto* network = lockstep::network();
  return lockstep::keep(network == nullptr ? "" : network->address());
}

int lockstep_send_note(int process, const void* bytes, std::uint64_t count,
                       double timeout_seconds) {
  bool sent = false;
  lockstep::guarded([&] {
    auto* network = lockstep::network();
    const auto* from = static_cast<const std::byte*>(bytes);
    sent = network != nullptr && network->send_note(process, {from, count}, timeout_seconds);
  });
  return sent ? 0 : -1;
}

int lockstep_next_note(double timeout_seconds, const void** bytes, std::uint64_t* count) {
  thread_local lockstep::Note kept;
  auto* network = lockstep::network();
  kept = network == nullptr ? lockstep::Note{lockstep::Note::kOver, {}}
                            : network->next_note(timeout_seconds);
  *bytes = kept.bytes.data();
  *count = kept.bytes.size();
  return kept.process;
}

int lockstep_is_lost(int process) {
  auto* world = Engine::instance().started();
  return world != nullptr && world->is_lost(process);
}

int lockstep_has_left(int process) {
  auto* world = Engine::instance().started();
  const auto* left = world == nullptr ? nullptr : world->has_left(process);
  return left != nullptr && left->load() != 0;
}
}
