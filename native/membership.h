// Who is in a clique.
//
// XLA asks for a communicator with two numbers: the clique's first device (color) and the caller's
// position (key). Its size and its other members do not cross the MPI interface, and several
// cliques of one program may share both numbers. XLA's own list of the members is in the frames of
// the functions that are calling us: a vector of device ids in a local variable, and another copy
// in the key of its communicator cache. `lists_on_stack` finds them by their shape and contents.
//
// Why a list that passes the checks is the right one: it starts with the color, the position key
// holds a device of this process, and all its ids are different devices of the job. XLA asks once
// for each pair of clique and device, so a list that an earlier call left behind names a pair that
// has its communicator already, and is dropped. If two different lists remain, or none, the answer
// is an error: never a guess. docs/design/membership.md has the whole argument, and what was
// rejected.
#pragma once

#include <functional>
#include <vector>

namespace lockstep {

class World;

using DeviceList = std::vector<int>;

// What a scan of the calling thread's frames found, each list once.
struct Sightings {
  std::vector<DeviceList> keys;   // behind a pointer into a loaded library: an object with a vtable
  std::vector<DeviceList> lists;  // anywhere
};
Sightings scan_stack(const World& world, int color, int key);

// The clique that (color, key) asks for. `taken` tells the lists whose position `key` has its
// communicator. Throws Error when the frames do not say, or say two things.
DeviceList decide_members(const Sightings& seen,
                          const std::function<bool(const DeviceList&)>& taken, int color, int key);

}  // namespace lockstep
