// The members of a clique.
//
// XLA asks for a communicator with two numbers: the clique's first device (color) and the caller's
// position (key). Its size and its other members do not cross the MPI interface, and several
// cliques of one program may share both numbers. But XLA keeps its communicators by the list of the
// members, and while it asks for one the key of that table, an xla::cpu::CpuCliqueKey, is a local
// variable of a function that is calling us. The class has virtual functions, so each object starts
// with a pointer by which its type can be read (the run-time type information that every C++
// compiler for Linux writes the same way): a key is known for certain, not by its looks.
//
// A key that an earlier call left behind, in words of the stack that were not used again, may be
// found beside the live one. XLA asks once for each pair of clique and device, so a left-over key
// names a pair that has its communicator already, and is dropped; its list must also still start
// with the color, hold a device of this process at the position, and consist of different devices
// of the job. If two different lists remain, the live key is the one that lies where a key was the
// only one before: in the frame of the same call, at the same offset, so it is the same variable.
// If that does not tell, or none remains, the answer is an error: never a guess.
// docs/design/membership.md has the whole argument, and what was rejected.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "xla_probe/stack.h"

namespace lockstep {

class Job;

using DeviceList = std::vector<int>;

// A list, and where in the frames keys have it. None: on the heap.
struct FoundKey {
  DeviceList devices;
  std::vector<Place> places;
};

// The clique keys in the calling thread's frames that could be the clique asked for, each list
// once. `id_bytes` is the width of a device id in this jaxlib: 4 or 8, or 0 when it is not known:
// then no list can be read.
std::vector<FoundKey> keys_on_stack(const Job& job, int color, int key, int id_bytes);

// Chooses the live key, and remembers where it was.
class KeyChooser {
 public:
  // The clique that (color, key) requests. `taken` tells the lists whose position `key` has its
  // communicator. Throws an Error that ends with `advice` unless exactly one candidate is left.
  DeviceList choose(std::vector<FoundKey> candidates,
                    const std::function<bool(const DeviceList&)>& taken, int color, int key,
                    const std::string& advice);

 private:
  std::mutex mutex_;
  std::set<Place> known_;  // of live keys
};

}  // namespace lockstep
