// NCCL's profiler plug-in: writes what NCCL does into the recorder's file, as the engine writes
// what it does itself. So everything that reads the file serves GPUs too: the watchdog, `report`,
// `top` and the traces.
//
// One communicator is one clique. NCCL calls `start` for a collective when the program calls it
// (version 5), again when it launches the kernel (the task), and when each channel of the kernel
// runs; the last channel that stops ends the entry. Sends and receives that are in one group are
// one entry: a collective-permute, or an all-to-all where there are several of a kind.
//
// It is called by the threads that dispatch and by NCCL's own. One mutex guards all that they
// share, for less than a microsecond at a time; Python is called without it, because a thread that
// holds Python's lock may wait for it.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "nccl/abi.h"
#include "nccl/operations.h"
#include "recorder/recorder.h"

namespace lockstep::nccl {
namespace {

std::mutex mutex;  // guards communicators, their operations, and the entries of the recorder

// Set once, by Python, before the first communicator is made.
std::unique_ptr<Recorder> recorder;
std::vector<int> devices;  // the global id of each GPU that CUDA shows; -1: not of this process
std::uint32_t (*site)() = nullptr;

// The index of the GPU that this thread works with, among those that CUDA shows.
int current_device() {
  using GetDevice = int (*)(int*);
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  const auto get = driver ? reinterpret_cast<GetDevice>(dlsym(driver, "cuCtxGetDevice")) : nullptr;
  int device = 0;
  return get != nullptr && get(&device) == 0 ? device : 0;
}

// A hash of the line of the program that calls; 0 where it is not asked for.
std::uint32_t line_of_call() { return site != nullptr ? site() : 0; }

bool is_send(const char* function) {
  return function != nullptr && std::strcmp(function, "Send") == 0;
}

int init(void** context, int* mask, int wanted, std::uint64_t id, int ranks, int rank) {
  *mask = 0;
  *context = nullptr;
  if (!recorder) return 0;
  auto communicator = std::make_unique<Communicator>();
  communicator->id = id;
  communicator->rank = rank;
  const auto index = static_cast<std::size_t>(current_device());
  const int device = index < devices.size() ? devices[index] : -1;
  communicator->ring = recorder->ring(device);
  // Each process knows its own place: readers put together what all have written.
  std::vector<int> members(static_cast<std::size_t>(ranks), -1);
  if (rank >= 0 && rank < ranks) members[static_cast<std::size_t>(rank)] = device;
  recorder->add_clique(id, members);
  *mask = wanted;
  *context = communicator.release();
  return 0;
}

int finalize(void* context) {
  delete static_cast<Communicator*>(context);
  return 0;
}

void* start_call(Communicator& communicator, Group* group, const Call& call) {
  const Name* op = operation_named(call.function);
  const Name* dtype = dtype_named(call.dtype);
  // A CUDA graph launches what it has captured again and again: each launch is an entry.
  if (op == nullptr || dtype == nullptr || call.captured) return nullptr;
  const std::uint32_t line = line_of_call();
  std::lock_guard lock(mutex);
  Operation* operation = add(communicator);
  begin(communicator, *operation, *op, call.count, *dtype, line);
  if (group != nullptr) group->operations.emplace_back(&communicator, operation);
  return &operation->call;
}

void* start_peer_call(Communicator& communicator, Group* group, const PeerCall& call) {
  const Name* dtype = dtype_named(call.dtype);
  if (group == nullptr || dtype == nullptr || call.captured) return nullptr;
  std::lock_guard lock(mutex);
  Operation* operation = peers_of(*group, communicator);
  add_peer(*operation, is_send(call.function), call.count, dtype);
  return &operation->call;
}

// `parent` is the handle of the call, or that of the group (version 4), or null (a CUDA graph).
void* start_task(Communicator& communicator, Handle* parent, const Task& task) {
  const bool is_called = parent != nullptr && parent->kind == Handle::kCallHandle;
  const std::uint32_t line = is_called ? 0 : line_of_call();
  std::lock_guard lock(mutex);
  Operation* operation = parent != nullptr ? parent->operation : nullptr;
  if (operation == nullptr) {
    const Name* op = operation_named(task.function);
    const Name* dtype = dtype_named(task.dtype);
    if (op == nullptr || dtype == nullptr) return nullptr;
    operation = add(communicator);
    begin(communicator, *operation, *op, task.count, *dtype, line);
  }
  operation->launched = true;
  operation->channels += task.channels;
  return &operation->task;
}

void* start_peer_task(Communicator& communicator, Handle* parent, const PeerTask& task) {
  std::lock_guard lock(mutex);
  const bool sends = is_send(task.function);
  Operation* operation = parent != nullptr ? parent->operation : nullptr;
  if (operation == nullptr && parent != nullptr) {  // the group's, in version 4
    operation = peers_of(*reinterpret_cast<Group*>(parent), communicator);
    add_peer(*operation, sends, task.count, dtype_named(task.dtype));
  }
  if (operation == nullptr) return nullptr;
  if (sends) operation->targets.push_back(task.peer);
  if (!sends) operation->source = task.peer;
  if (operation->begun && operation->sends <= 1 && operation->receives <= 1) {
    if (sends) Recorder::add_target(operation->record, task.peer);
    if (!sends) Recorder::add_source(operation->record, task.peer);
  }
  operation->launched = true;
  operation->channels += task.channels;
  return &operation->task;
}

void* start_kernel(Handle* parent) {
  if (parent == nullptr || parent->operation == nullptr) return nullptr;
  std::lock_guard lock(mutex);
  Operation& operation = *parent->operation;
  if (operation.started++ == 0) Recorder::entered(operation.record, Clock::now());
  return &operation.kernel;
}

void stop_kernel(Communicator& communicator, Operation& operation) {
  std::lock_guard lock(mutex);
  ++operation.stopped;
  if (operation.stopped == operation.started && operation.stopped >= operation.channels)
    finish(communicator, operation);
}

// The calls of the group are complete, and NCCL is about to launch them.
void end_calls(const Group& group) {
  const bool has_peers = std::ranges::any_of(
      group.operations, [](const auto& of) { return of.second->is_peers && !of.second->begun; });
  const std::uint32_t line = has_peers ? line_of_call() : 0;
  for (const auto& [communicator, operation] : group.operations) {
    std::lock_guard lock(mutex);
    if (operation->is_peers) begin_peers(*communicator, *operation, line);
  }
}

void end_group(Group* group) {
  end_calls(*group);
  for (const auto& [communicator, operation] : group->operations) {
    std::lock_guard lock(mutex);
    // An operation without a kernel, as where copy engines do the work, ends here: NCCL does not
    // report its end.
    if (!operation->launched && !operation->done) finish(*communicator, *operation);
  }
  delete group;
}

template <typename Event>
int start(void* context, void** handle, const Event* event, std::uint64_t group_type) {
  *handle = nullptr;
  if (context == nullptr) return 0;
  auto& communicator = *static_cast<Communicator*>(context);
  auto* parent = static_cast<Handle*>(event->parent);
  auto* group = parent != nullptr && parent->kind == Handle::kGroupHandle
                    ? reinterpret_cast<Group*>(parent)
                    : nullptr;
  if (event->type == group_type) {
    *handle = &(new Group)->handle;
  } else if (event->type == kTask) {
    *handle = start_task(communicator, parent, event->task);
  } else if (event->type == kPeerTask) {
    *handle = start_peer_task(communicator, parent, event->peer_task);
  } else if (event->type == kKernel) {
    *handle = start_kernel(parent);
  } else if constexpr (std::is_same_v<Event, Event5>) {
    if (event->type == kCall) *handle = start_call(communicator, group, event->call);
    if (event->type == kPeerCall) *handle = start_peer_call(communicator, group, event->peer_call);
  }
  return 0;
}

int stop(void* of) {
  auto* handle = static_cast<Handle*>(of);
  if (handle == nullptr) return 0;
  if (handle->kind == Handle::kGroupHandle)
    end_group(reinterpret_cast<Group*>(handle));
  else if (handle->kind == Handle::kKernelHandle)
    stop_kernel(*handle->communicator, *handle->operation);
  return 0;
}

int record_state(void* of, int state, void*) {
  auto* handle = static_cast<Handle*>(of);
  if (handle != nullptr && handle->kind == Handle::kGroupHandle && state == kGroupEnds)
    end_calls(*reinterpret_cast<Group*>(handle));
  return 0;
}

int init4(void** context, int* mask, const char*, std::uint64_t id, int, int ranks, int rank,
          Logger) {
  return init(context, mask, kGroup | kTask | kPeerTask | kKernel, id, ranks, rank);
}

int init5(void** context, std::uint64_t id, int* mask, const char*, int, int ranks, int rank,
          Logger) {
  constexpr auto kWanted = kGroupCall | kCall | kPeerCall | kTask | kPeerTask | kKernel;
  return init(context, mask, kWanted, id, ranks, rank);
}

int start4(void* context, void** handle, Event4* event) {
  return start(context, handle, event, kGroup);
}

int start5(void* context, void** handle, Event5* event) {
  return start(context, handle, event, kGroupCall);
}

}  // namespace
}  // namespace lockstep::nccl

extern "C" {

__attribute__((visibility("default"))) lockstep::nccl::Profiler4 ncclProfiler_v4 = {
    "lockstep",           lockstep::nccl::init4,        lockstep::nccl::start4,
    lockstep::nccl::stop, lockstep::nccl::record_state, lockstep::nccl::finalize};
__attribute__((visibility("default"))) lockstep::nccl::Profiler5 ncclProfiler_v5 = {
    "lockstep",           lockstep::nccl::init5,        lockstep::nccl::start5,
    lockstep::nccl::stop, lockstep::nccl::record_state, lockstep::nccl::finalize};

// Text is UTF-8. `path` is that of the recorder's file, null: in memory; `ids` are the global ids
// of the GPUs that CUDA shows, -1 for those of other processes. Returns the descriptor of the
// record, which the library owns, and -1 where it cannot be kept.
int lockstep_nccl_start(const char* path, int process, int processes, int attempt, const char* host,
                        const char* label, int count, const int* ids, std::uint32_t (*site)()) {
  using namespace lockstep;
  try {
    if (nccl::recorder) return nccl::recorder->fd();
    auto made = std::make_unique<Recorder>(RecorderOptions{.path = path ? path : "",
                                                           .process = process,
                                                           .num_processes = processes,
                                                           .attempt = attempt,
                                                           .host = host,
                                                           .label = label});
    nccl::devices.assign(ids, ids + count);
    nccl::site = site;
    std::vector<int> own;
    std::ranges::copy_if(nccl::devices, std::back_inserter(own), [](int id) { return id >= 0; });
    made->set_devices(own);
    nccl::recorder = std::move(made);
    return nccl::recorder->fd();
  } catch (const std::exception&) {
    return -1;
  }
}

// The state of this process in its record from now on: 1 its program has ended, 2 it has failed.
void lockstep_nccl_leave(int state) {
  using lockstep::Recorder;
  if (lockstep::nccl::recorder)
    lockstep::nccl::recorder->set_state(static_cast<Recorder::State>(state));
}
}
