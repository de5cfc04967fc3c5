// Which program a collective belongs to, and which place in it.
//
// Neither crosses the MPI interface, but while XLA calls a collective, an object of the class
// xla::cpu::CpuCollectives::Executor lies in a frame above ours, and it holds XLA's key of the
// rendezvous: the number of this execution of the program, and the number of the collective within
// the program (its channel). JAX numbers the executions of a program that spans processes from a
// hash of the program and its devices on, so both numbers are the same on all processes of a
// correct job, and differ where processes execute different programs, or one program a different
// number of times. docs/design/divergence.md has the facts behind this.
#pragma once

#include "base/origin.h"

namespace lockstep {

// Called by a function that XLA calls, with its own __builtin_frame_address(0). Reads a few
// dozen words. When the frames contradict each other, the origin is unknown.
Origin origin_of_call(const void* frame);

// The first calls search for a class that was not found in jaxlib; this lets the next ones do so
// again. For tests.
void restart_search_for_origins();

}  // namespace lockstep
