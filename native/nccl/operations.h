// What NCCL has in flight, and the entry of each in the recorder. The caller serializes the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "recorder/recorder.h"

namespace lockstep::nccl {

// A name of NCCL's, with its code in the recorder's file.
struct Name {
  std::string_view name;
  std::uint8_t code;
  std::uint8_t bytes = 0;  // of a type
};
// Null for what the file has no code for.
const Name* operation_named(const char* name);
const Name* dtype_named(const char* name);

struct Communicator;
struct Operation;

// What NCCL keeps for an event, and gives back when the event stops.
struct Handle {
  enum Kind { kGroupHandle, kCallHandle, kTaskHandle, kKernelHandle } kind;
  Communicator* communicator = nullptr;
  Operation* operation = nullptr;
};

struct Operation {
  Handle call{Handle::kCallHandle}, task{Handle::kTaskHandle}, kernel{Handle::kKernelHandle};
  Record record;
  bool begun = false;     // its entry has been written
  bool launched = false;  // NCCL has said with how many channels it runs
  bool done = false;
  int channels = 0, started = 0, stopped = 0;
  // The fields from here on are for sends and receives.
  bool is_peers = false;
  const Name* dtype = nullptr;
  std::size_t count = 0;
  std::vector<int> targets;
  int source = -1, sends = 0, receives = 0;
};

struct Communicator {
  std::uint64_t id = 0;
  int rank = 0;
  Recorder::Ring* ring = nullptr;
  std::deque<Operation> operations;  // in the order in which they were called, without old ones
  std::size_t first_open = 0;        // all before it are done
  std::uint32_t meetings = 0, permutes = 0;
};

// What one thread has called since its outermost ncclGroupStart.
struct Group {
  Handle handle{Handle::kGroupHandle};
  std::vector<std::pair<Communicator*, Operation*>> operations;
};

Operation* add(Communicator& communicator);
// The sends and receives of a group with that communicator, which may be the first ones.
Operation* peers_of(Group& group, Communicator& communicator);
// Writes the entry of an operation, if that is still to be done. `line` is a hash of the line of
// the program that has called it; 0: not known.
void begin(Communicator& communicator, Operation& operation, const Name& what, std::size_t count,
           const Name& dtype, std::uint32_t line);
// Writes the entry of the sends and receives of a group, when all of them are known.
void begin_peers(Communicator& communicator, Operation& operation, std::uint32_t line);
// Adds a send or a receive. `dtype` may be null.
void add_peer(Operation& operation, bool is_send, std::size_t count, const Name* dtype);
// NCCL runs the operations of a communicator in order: with this one all before it are done.
void finish(Communicator& communicator, const Operation& last);

}  // namespace lockstep::nccl
