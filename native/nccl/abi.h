// The part of NCCL's profiler plug-in interface that Lockstep needs, versions 4 and 5.
//
// NCCL (2.27 and later) opens the library that NCCL_PROFILER_PLUGIN names, looks up
// `ncclProfiler_v5` or an older version, and calls it for the events that `init` has asked for.
// These are structs of a published interface (NCCL, plugins/profiler/): their sizes and offsets may
// not change, and tests/nccl/test_profiler.py has the published numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::nccl {

// Event types, and bits of the activation mask.
enum Type : std::uint64_t {
  kGroup = 1 << 0,      // operations that one kernel launch has in it
  kTask = 1 << 1,       // a collective as it is launched
  kPeerTask = 1 << 2,   // a send or receive as it is launched
  kKernel = 1 << 6,     // a channel of an operation's kernel, as it runs
  kGroupCall = 1 << 8,  // from here on since version 5: the outermost ncclGroupStart ... End
  kCall = 1 << 9,       // the call of a collective
  kPeerCall = 1 << 10,  // the call of a send or receive
};

// The states that an event may be reported to be in; the only one of interest.
enum State : int { kGroupEnds = 24 };

struct Call {
  const char* function;
  std::size_t count;
  const char* dtype;
  int root;
  void* stream;
  bool captured;  // into a CUDA graph, which replays it without another call
};

struct PeerCall {
  const char* function;
  std::size_t count;
  const char* dtype;
  void* stream;
  bool captured;
};

struct Task {
  std::uint64_t sequence;
  const char* function;
  const void* in;
  void* out;
  std::size_t count;
  int root;
  const char* dtype;
  std::uint8_t channels;
  std::uint8_t warps;
  const char* algorithm;
  const char* protocol;
};

struct PeerTask {
  const char* function;
  void* buffer;
  const char* dtype;
  std::size_t count;
  int peer;
  std::uint8_t channels;
};

// Room for the largest event of each version, of which Lockstep reads none.
struct Event4 {
  std::uint8_t type;
  void* parent;
  int rank;
  union {
    Task task;
    PeerTask peer_task;
  };
};

struct Event5 {
  std::uint64_t type;
  void* parent;
  int rank;
  union {
    Call call;
    PeerCall peer_call;
    Task task;
    PeerTask peer_task;
  };
};

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

struct Profiler4 {
  const char* name;
  int (*init)(void** context, int* mask, const char* name, std::uint64_t communicator, int nodes,
              int ranks, int rank, Logger log);
  int (*start)(void* context, void** handle, Event4* event);
  int (*stop)(void* handle);
  int (*record_state)(void* handle, int state, void* arguments);
  int (*finalize)(void* context);
};

struct Profiler5 {
  const char* name;
  int (*init)(void** context, std::uint64_t communicator, int* mask, const char* name, int nodes,
              int ranks, int rank, Logger log);
  int (*start)(void* context, void** handle, Event5* event);
  int (*stop)(void* handle);
  int (*record_state)(void* handle, int state, void* arguments);
  int (*finalize)(void* context);
};

static_assert(offsetof(Event4, parent) == 8 && offsetof(Event4, task) == 24);
static_assert(offsetof(Event5, parent) == 8 && offsetof(Event5, call) == 24);
static_assert(offsetof(Task, count) == 32 && offsetof(Task, channels) == 56);
static_assert(offsetof(PeerTask, peer) == 32 && offsetof(PeerTask, channels) == 36);
static_assert(sizeof(Call) == 48 && sizeof(Task) == 80);

}  // namespace lockstep::nccl
