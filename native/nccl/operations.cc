#include "nccl/operations.h"

#include <algorithm>
#include <iterator>

#include "recorder/tsc_clock.h"

namespace lockstep::nccl {
namespace {

// The codes are those of the file (src/lockstep/flight_recorder/format.py).
constexpr Name kOps[] = {
    {"AllReduce", 0}, {"AllGather", 1}, {"ReduceScatter", 2}, {"AlltoAll", 3}, {"Broadcast", 5}};
constexpr Name kAllToAll{"", 3}, kPermute{"", 4};  // of sends and receives
constexpr std::int64_t kQueued = -1;               // the channel of what the device has not begun
constexpr Name kDTypes[] = {
    {"ncclInt8", 1, 1},      {"ncclInt32", 3, 4},       {"ncclInt64", 4, 8},
    {"ncclUint8", 5, 1},     {"ncclUint32", 7, 4},      {"ncclUint64", 8, 8},
    {"ncclFloat32", 9, 4},   {"ncclFloat64", 10, 8},    {"ncclFloat16", 13, 2},
    {"ncclBfloat16", 14, 2}, {"ncclFloat8e4m3", 15, 1}, {"ncclFloat8e5m2", 16, 1}};

// The code of a name; null for a name that the file has none for.
template <std::size_t N>
const Name* find(const Name (&names)[N], const char* name) {
  if (name == nullptr) return nullptr;
  const auto found = std::ranges::find(names, std::string_view(name), &Name::name);
  return found == std::end(names) ? nullptr : found;
}

}  // namespace

const Name* operation_named(const char* name) { return find(kOps, name); }
const Name* dtype_named(const char* name) { return find(kDTypes, name); }

Operation* add(Communicator& communicator) {
  while (!communicator.operations.empty() && communicator.operations.size() > Recorder::kEntries &&
         communicator.first_open > 0) {
    communicator.operations.pop_front();
    --communicator.first_open;
  }
  Operation& added = communicator.operations.emplace_back();
  for (Handle* handle : {&added.call, &added.task, &added.kernel}) {
    handle->communicator = &communicator;
    handle->operation = &added;
  }
  return &added;
}

Operation* peers_of(Group& group, Communicator& communicator) {
  for (const auto& [of, operation] : group.operations)
    if (of == &communicator && operation->is_peers) return operation;
  return group.operations.emplace_back(&communicator, add(communicator)).second;
}

void begin(Communicator& communicator, Operation& operation, const Name& what, std::size_t count,
           const Name& dtype, std::uint32_t line) {
  if (operation.begun) return;
  operation.begun = true;
  auto& sequence = what.code == kPermute.code ? communicator.permutes : communicator.meetings;
  operation.record = Recorder::begin(communicator.ring, {.clique = communicator.id,
                                                         .channel = kQueued,
                                                         .count = count,
                                                         .bytes = count * dtype.bytes,
                                                         .sequence = sequence++,
                                                         .op = what.code,
                                                         .dtype = dtype.code,
                                                         .entered_ns = nanoseconds(Clock::now()),
                                                         .rank = communicator.rank,
                                                         .site = line});
}

void begin_peers(Communicator& communicator, Operation& operation, std::uint32_t line) {
  if (operation.begun || operation.dtype == nullptr) return;
  const bool is_permute = operation.sends <= 1 && operation.receives <= 1;
  // The engine counts both in bytes, an all-to-all by what goes to each rank.
  constexpr Name kBytes{"", 0, 1};
  begin(communicator, operation, is_permute ? kPermute : kAllToAll,
        operation.count * operation.dtype->bytes, kBytes, line);
  if (is_permute) {
    Recorder::add_source(operation.record, operation.source);
    for (const int target : operation.targets) Recorder::add_target(operation.record, target);
  }
  // In version 4 the group is complete only after its launch, and the operation may have ended.
  if (operation.done) Recorder::finish_at(operation.record, RecordEntry::kDone, Clock::now());
}

void add_peer(Operation& operation, bool is_send, std::size_t count, const Name* dtype) {
  operation.is_peers = true;
  operation.dtype = dtype;
  operation.count = count;
  ++(is_send ? operation.sends : operation.receives);
}

void finish(Communicator& communicator, const Operation& last) {
  if (last.done) return;
  const auto now = Clock::now();
  for (bool found = false; !found; ++communicator.first_open) {
    Operation& operation = communicator.operations[communicator.first_open];
    found = &operation == &last;
    operation.done = true;
    Recorder::finish_at(operation.record, RecordEntry::kDone, now);
  }
}

}  // namespace lockstep::nccl
