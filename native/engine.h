// The engine of this process, and the C interface by which Python configures it.
//
// jaxlib loads the library when it is loaded itself; Python opens the same file with ctypes and
// gets the same instance. Order of events: Python sets the callbacks (import lockstep) -> jaxlib
// calls MPI_Init_thread -> `start` callback: Python exchanges addresses and calls lockstep_start ->
// XLA asks for communicators -> `devices` callback, once: Python hands in the device table.
#pragma once

#include <cstdint>

extern "C" {

// All text parameters are UTF-8; functions that return int return 0 on success, and otherwise
// lockstep_last_error() has the reason (of this thread).
const char* lockstep_version();
const char* lockstep_last_error();

// Called by the engine, possibly from XLA's threads. A callback that fails calls lockstep_fail.
struct lockstep_callbacks {
  void (*start)();    // jaxlib starts its collectives: call lockstep_start
  void (*devices)();  // call lockstep_set_devices
};
void lockstep_set_callbacks(const lockstep_callbacks* callbacks);
void lockstep_fail(const char* text);

// Makes this host's shared memory; returns a file descriptor that the caller owns, or -1.
int lockstep_create_arena(std::uint64_t nonce);

struct lockstep_options {
  int process;
  int num_processes;
  const char* const* labels;  // one per process: "process 1 (pid 7 on host a)"
  int arena_fd;
  std::uint64_t nonce;
  double timeout_seconds;  // of one collective; 0 for none
  int cores;               // this process's share
  int crowded;             // more processes than cores on this host
  int device_id_bytes;     // width of a device id in this jaxlib: 4 or 8
  int single_copy;  // large messages straight from the memory of other processes, if possible
};
int lockstep_start(const lockstep_options* options);

int lockstep_set_devices(int count, const int* ids, const int* processes);

// How many calls of each kind jaxlib has made, by lockstep::Op.
void lockstep_counts(std::uint64_t counts[5]);
}
