// A real MPI behind jaxlib's MPI plug, and the C interface by which Python opens it.
//
// jaxlib loads the library when it is loaded itself; Python opens the same file with ctypes and
// gets the same instance. Order of events: Python names the MPI (import lockstep) -> Python starts
// it, right before jaxlib would -> jaxlib calls MPI_Init_thread and finds it done -> XLA asks for
// communicators.
#pragma once

extern "C" {

// Functions that return int return 0 on success, and otherwise lockstep_mpi_last_error() has the
// reason (of this thread).
const char* lockstep_mpi_last_error();

// Loads an MPI that has the standard ABI of MPI 5 (libmpi_abi.so). Once per process.
int lockstep_mpi_open(const char* path);

// MPI_Init_thread. Fails unless MPI sees `processes` processes and grants calls from any thread.
// Returns once all have got there.
int lockstep_mpi_start(int processes);

// Makes MPI_Finalize, which waits for all processes, do nothing: this one is about to fail.
void lockstep_mpi_abandon();
}
