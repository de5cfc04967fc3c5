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
  // A hash of the line of the user's program that makes this collective; only under `strict`.
  std::uint32_t (*site)();
};
void lockstep_set_callbacks(const lockstep_callbacks* callbacks);
void lockstep_fail(const char* text);

// Makes this host's shared memory; returns a file descriptor that the caller owns, or -1.
int lockstep_create_arena(std::uint64_t nonce);

struct lockstep_options {
  int process;
  int num_processes;
  // An agent is a member of the network between hosts that owns no device and is in no collective:
  // it answers the control messages of watchdogs of other hosts when the processes of its own
  // cannot. Agents are numbered behind the processes: a `process` from num_processes on is one. An
  // agent has an arena of its own; losing it does not fail the job, and it cannot fail the job.
  int num_agents;
  // Arrays with one entry per process have one entry per agent behind those.
  const char* const* labels;  // one per process: "process 1 (pid 7 on host a)"
  int arena_fd;
  std::uint64_t nonce;
  double timeout_seconds;  // of one collective; 0 for none
  int cores;               // this process's share
  int oversubscribed;      // more processes than cores on this host
  int device_id_bytes;     // width of a device id in this jaxlib: 4 or 8; 0: not known
  const char* no_members;  // sentences that end the error for a group with unknown members
  int check_programs;      // compare which program a collective belongs to
  int strict;              // compare call sites as well
  int record;              // whether to keep records at all
  const char* recorder;    // path of the recorder's file; null: in memory
  const char* host;
  int attempt;
  int single_copy;  // large messages straight from the memory of other processes, if possible
  // A job on one host has null, null, -1, null, 0 and null here.
  const char* const* addresses;  // one per process, "10.0.0.1:4411"; "" for those of this host,
                                 // and, in an agent, for the other agents
  const int* pids;               // one per process: of the others of this host, else 0; agents
                                 // have 0, and watch no others
  int listener;                  // a listening socket of this process, which the engine duplicates
  const char* key;               // bytes that only the processes of the job have
  int key_bytes;
  int key_is_drawn;         // by the launcher of all processes: it is the same in all of them
  const char* tls_library;  // OpenSSL's libssl, for dlopen
  int encrypt;              // also what follows the greeting; the same in all processes
  int connections;          // to each process of another host; the same in all processes
  // One per process: a number of its host, the same in all processes. Null where this process is in
  // no collective.
  const int* hosts;
  // The algorithms of collectives between hosts in place of the engine's choice, "all-reduce=ring";
  // the same in all processes. Null or "": none.
  const char* algorithms;
  // Names of UCX's libucp, for dlopen: the first that there is carries the data between hosts,
  // unencrypted, in all processes of the job. Null and 0: TCP does.
  const char* const* ucx_libraries;
  int num_ucx_libraries;
};
// Returns when this process has met all processes and agents of other hosts. An agent may start
// again: its earlier start has then taken leave.
int lockstep_start(const lockstep_options* options);

int lockstep_set_devices(int count, const int* ids, const int* processes);

// Which of XLA's classes lockstep_start has found in jaxlib's library: 1 the key of a clique, 2
// what says which program a collective belongs to, 3 both.
int lockstep_virtual_tables();

// How many calls of each kind jaxlib has made, by lockstep::Op.
void lockstep_counts(std::uint64_t counts[5]);
// How many calls on threads of XLA's own have returned an error.
std::uint64_t lockstep_failed_calls();
// How many threads of Python's are in a call now. Threads of XLA's own are not counted.
int lockstep_python_threads();

// What follows needs lockstep_start, and does nothing (or answers -1 or "") before it, save
// lockstep_forbid, which is remembered.

// Fails the job: every rank that waits, and every later collective, raises the text.
void lockstep_abort(const char* text);
// The text the job failed with; "" while it is healthy.
const char* lockstep_abort_text();
// Every collective of this process raises the text at once; null or "" lifts it.
void lockstep_forbid(const char* text);
// Waits until no collective is left of what the program has dispatched.
void lockstep_finish();
// The state of this process in its record from now on: 1 its program has ended, 2 it has failed.
void lockstep_leave(int state);
// In a forked child: lets go of the connections to other hosts, which are its parent's.
void lockstep_forked();

int lockstep_recorder_fd();
const char* lockstep_recorder_problem();
// Readable once a rank has waited long, or has a request.
int lockstep_wake_up_fd();
// Whether a watchdog reads the wake-up descriptor and answers requests. Then, where there are
// several hosts, it is notified too when a process is lost, and the job fails 0.6 s later unless a
// watchdog has aborted it before with a better reason.
void lockstep_set_watched(int watched);
// The next request of a rank of this process; "" and number 0 when there is none. "programs" and
// five numbers: may look-alike collectives of different programs meet; "deadline" and a text: what
// a rank is about to fail the job with, because it has waited too long; anything else: a
// divergence, or that a rank waits for a process whose program has ended. Of the last two the
// watchdog may publish more, by lockstep_abort, before it responds. The same request is returned
// until the watchdog has responded to its number, or no rank wants the response any more.
const char* lockstep_request(std::uint64_t* number);
// 1: yes, 0: no, -1: not known, so that the rank goes on and asks again later. Returns 1 if a rank
// has waited for this response; 0: it has gone on without.
int lockstep_respond(std::uint64_t number, int response);

// The address at which this process listens for those of other hosts, "10.0.0.1:4411" or
// "[fe80::1]:4411"; "" in a job of one host. The port is closed once all pairs have met, and the
// address still identifies the connections to it.
const char* lockstep_listens_at();

// Control messages between the watchdogs of different hosts, of up to 16 MiB. Any thread may send
// or wait. Both end when the process exits, and in a forked child. 0 when it is on its way, -1 when
// it cannot be sent: that process is of this host, or lost, or has not taken it in time. It may
// still be dropped there, if too much is waiting.
int lockstep_send_message(int process, const void* bytes, std::uint64_t count,
                          double timeout_seconds);
// Begins to connect to a process of another host, if that is yet to be done: 0, and 1 when it has
// been, -1 when no message can be sent there. `lockstep_send_message` waits for the connection:
// before messages to several processes, this lets all connect at once.
int lockstep_connect(int process);
// Whether a message to that process need not wait for a connection. 1 or 0.
int lockstep_is_connected(int process);
// The process that sent the next message, -1 when none came in time, -2 when none will come
// (the endpoint is stopped, or there is none). `bytes` and `count` are set to what it holds, kept
// until this thread's next call.
int lockstep_next_message(double timeout_seconds, const void** bytes, std::uint64_t* count);
// Whether the connection from that process (of another host) has been lost, or that process (of
// this host) has been seen dead, where there are several hosts. 1 or 0. A process that has left is
// not lost.
int lockstep_is_lost(int process);
// Whether that process has said that its program has ended, where there are several hosts. 1 or 0.
int lockstep_has_left(int process);
}
