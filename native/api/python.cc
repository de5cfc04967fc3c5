#include "api/python.h"

#include "api/mpitrampoline/state.h"
#include "base/error.h"
#include "base/log.h"
#include "collectives/collectives.h"
#include "transport/shm/segment.h"
#include "xla_probe/vtables.h"

namespace lockstep {
namespace {

// How many calls may show nothing before the user gets a warning.
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

// Like its job it is never destroyed: calls may be in flight.
Network& network() {
  static auto* none = new NoNetwork;
  Job* job = Engine::instance().started();
  return job == nullptr ? *none : job->network();
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
    if (job_ != nullptr) job_->network().end_control();
    job_ = nullptr;  // an earlier job stays alive: communicators point into it
    failure_.clear();
    callbacks = callbacks_;
  }
  if (callbacks.start == nullptr)
    return fail(
        "lockstep: jaxlib has loaded the engine, but it was not configured. Put `import "
        "lockstep` before `import jax` in this program, or start it with `lockstep run`.");
  callbacks.start();
}

// Ends an agent's job: an agent has no jaxlib that would initialize it once more.
void Engine::retire_agent() {
  Job* agent = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (job_ != nullptr && job_->is_agent()) std::swap(agent, job_);
  }
  if (agent != nullptr) agent->retire();
}

void Engine::start(JobOptions options) {
  static std::once_flag once;  // jaxlib is loaded, where there is one
  std::call_once(once, [] { find_virtual_tables("/jaxlib/"); });
  retire_agent();
  auto job = std::make_unique<Job>(std::move(options));
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  job_ = jobs_.back().get();
  requested_.clear();
  job_->forbid(forbidden_);
}

void Engine::set_no_members(const std::string& advice) {
  std::lock_guard lock(mutex_);
  no_members_ = advice;
}

void Engine::set_checks(bool programs, bool strict) {
  check_programs_.store(programs);
  std::lock_guard lock(mutex_);
  strict_.store(strict && callbacks_.site != nullptr);
}

void Engine::forbid(const std::string& text) {
  std::lock_guard lock(mutex_);
  forbidden_ = text;
  if (job_ != nullptr) job_->forbid(text);
}

Job* Engine::started() const {
  std::lock_guard lock(mutex_);
  return job_;
}

void Engine::fail(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = text;
}

Job& Engine::job() {
  std::lock_guard lock(mutex_);
  if (job_ == nullptr || !failure_.empty())
    throw Error(failure_.empty() ? "lockstep: the engine was not started." : failure_);
  return *job_;
}

std::unique_ptr<Communicator> Engine::communicator(int color, int key) {
  Job& job = this->job();
  if (!job.knows_devices()) {
    std::lock_guard lock(requesting_);
    if (!job.knows_devices()) callbacks_.devices();
    this->job();  // throws what the callback reported
  }
  const auto taken = [&](const DeviceList& list) {
    std::lock_guard lock(mutex_);
    return requested_.contains({list, key});
  };
  const std::string advice = [&] {
    std::lock_guard lock(mutex_);
    return no_members_;
  }();
  try {
    const DeviceList devices = key_chooser_.choose(
        keys_on_stack(job, color, key, job.device_id_bytes()), taken, color, key, advice);
    auto communicator = std::make_unique<Communicator>(job.clique(devices), key);
    std::lock_guard lock(mutex_);
    requested_.insert({devices, key});
    return communicator;
  } catch (const std::exception& error) {
    // The others of the clique would wait for this process until their deadline.
    throw Error(job.failed(error.what()));
  }
}

void Engine::note_origin(bool known) {
  if (origins_known_.load(std::memory_order_relaxed)) return;
  if (known) return origins_known_.store(true, std::memory_order_relaxed);
  if (unknown_origins_.fetch_add(1, std::memory_order_relaxed) + 1 != kUnknownOrigins) return;
  const Job* job = started();
  if (job != nullptr && job->process() == 0)
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
  lockstep::guarded([&] { fd = lockstep::Arena::create(nonce).release(); });
  return fd;
}

int lockstep_start(const lockstep_options* given) {
  return lockstep::guarded([&] {
    lockstep::JobOptions options;
    options.process = given->process;
    const int members = given->num_processes + given->num_agents;
    options.labels.assign(given->labels, given->labels + members);
    options.endpoint.num_agents = given->num_agents;
    options.arena_fd = given->arena_fd;
    options.nonce = given->nonce;
    options.timeout_seconds = given->timeout_seconds;
    options.cores = given->cores;
    options.oversubscribed = given->oversubscribed != 0;
    options.device_id_bytes = given->device_id_bytes;
    Engine::instance().set_no_members(given->no_members == nullptr ? "" : given->no_members);
    if (given->recorder != nullptr) options.recorder.path = given->recorder;
    if (given->host != nullptr) options.recorder.host = given->host;
    options.recorder.enabled = given->record != 0;
    options.recorder.attempt = given->attempt;
    Engine::instance().set_checks(given->check_programs != 0, given->strict != 0);
    options.single_copy = given->single_copy != 0;
    options.algorithms =
        lockstep::prescribed_algorithms(given->algorithms == nullptr ? "" : given->algorithms);
    if (given->addresses != nullptr) {
      const auto* key = reinterpret_cast<const std::byte*>(given->key);
      options.endpoint.addresses.assign(given->addresses, given->addresses + members);
      options.endpoint.pids.assign(given->pids, given->pids + members);
      options.endpoint.listener = given->listener;
      options.endpoint.key.assign(key, key + given->key_bytes);
      options.endpoint.key_is_drawn = given->key_is_drawn != 0;
      options.endpoint.tls_library = given->tls_library;
      options.endpoint.encrypt = given->encrypt != 0;
      options.endpoint.connections = given->connections;
      if (given->hosts != nullptr) options.hosts.assign(given->hosts, given->hosts + members);
      options.ucx_libraries.assign(given->ucx_libraries,
                                   given->ucx_libraries + given->num_ucx_libraries);
    }
    Engine::instance().start(std::move(options));
  });
}

int lockstep_set_devices(int count, const int* ids, const int* processes) {
  return lockstep::guarded([&] {
    Engine::instance().job().set_devices({ids, ids + count}, {processes, processes + count});
  });
}

int lockstep_virtual_tables() {
  const auto [clique_key, executor] = lockstep::virtual_tables();
  return (clique_key != 0 ? 1 : 0) + (executor != 0 ? 2 : 0);
}

void lockstep_counts(std::uint64_t counts[5]) { Engine::instance().read_counts(counts); }

std::uint64_t lockstep_failed_calls() { return Engine::instance().failures(); }

int lockstep_python_threads() { return Engine::instance().python_threads(); }

void lockstep_abort(const char* text) {
  if (auto* job = Engine::instance().started()) job->arena().abort(text);
}

const char* lockstep_abort_text() {
  auto* job = Engine::instance().started();
  const bool failed = job != nullptr && job->arena().aborted();
  return lockstep::keep(failed ? job->arena().abort_text() : "");
}

void lockstep_forbid(const char* text) { Engine::instance().forbid(text == nullptr ? "" : text); }

void lockstep_finish() {
  if (auto* job = Engine::instance().started()) job->finish();
}

void lockstep_leave(int state) {
  if (auto* job = Engine::instance().started())
    job->leave(static_cast<lockstep::Recorder::State>(state));
}

void lockstep_forked() { lockstep::network().abandon(); }

int lockstep_recorder_fd() {
  auto* job = Engine::instance().started();
  return job == nullptr ? -1 : job->recorder().fd();
}

const char* lockstep_recorder_problem() {
  auto* job = Engine::instance().started();
  return lockstep::keep(job == nullptr ? "" : job->recorder().problem());
}

int lockstep_wake_up_fd() {
  auto* job = Engine::instance().started();
  return job == nullptr ? -1 : job->wake_up().fd();
}

void lockstep_set_watched(int watched) {
  if (auto* job = Engine::instance().started()) job->set_watched(watched != 0);
}

const char* lockstep_request(std::uint64_t* number) {
  auto* job = Engine::instance().started();
  auto request = job == nullptr ? lockstep::Requests::Request{} : job->requests().next();
  *number = request.number;
  return lockstep::keep(std::move(request.text));
}

int lockstep_respond(std::uint64_t number, int response) {
  using Response = lockstep::Requests::Response;
  auto* job = Engine::instance().started();
  if (job == nullptr) return 0;
  const auto given = response < 0    ? Response::kUnknown
                     : response == 0 ? Response::kNo
                                     : Response::kYes;
  return job->requests().respond(number, given) ? 1 : 0;
}

const char* lockstep_listens_at() { return lockstep::keep(lockstep::network().address()); }

int lockstep_send_message(int process, const void* bytes, std::uint64_t count,
                          double timeout_seconds) {
  bool sent = false;
  lockstep::guarded([&] {
    const auto* from = static_cast<const std::byte*>(bytes);
    sent = lockstep::network().send_control(process, {from, count}, timeout_seconds);
  });
  return sent ? 0 : -1;
}

int lockstep_connect(int process) {
  using Connecting = lockstep::Network::Connecting;
  Connecting state = Connecting::kNever;
  lockstep::guarded([&] { state = lockstep::network().connect(process); });
  return state == Connecting::kNever ? -1 : state == Connecting::kDone ? 1 : 0;
}

int lockstep_is_connected(int process) { return lockstep::network().is_connected(process) ? 1 : 0; }

int lockstep_next_message(double timeout_seconds, const void** bytes, std::uint64_t* count) {
  thread_local lockstep::ControlMessage kept;
  kept = lockstep::network().next_control(timeout_seconds);
  *bytes = kept.bytes.data();
  *count = kept.bytes.size();
  return kept.process;
}

int lockstep_is_lost(int process) {
  auto* job = Engine::instance().started();
  return job != nullptr && job->is_lost(process);
}

int lockstep_has_left(int process) {
  auto* job = Engine::instance().started();
  const auto* left = job == nullptr ? nullptr : job->has_left(process);
  return left != nullptr && left->load() != 0;
}
}
