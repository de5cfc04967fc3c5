// The MPI functions that XLA calls, passed on to a real MPI. The two sides differ in the values of
// their constants only: MPItrampoline's are ours to choose (api/mpitrampoline/surface.inc), those
// of the standard ABI are fixed (MPI 5.0, "Application Binary Interface"). Handles are
// pointer-sized on both.
//
// What MPI cannot do as XLA expects it: MPI_Comm_split is a collective over all processes, so every
// process has to ask for a communicator at the same point, and no process can ask twice at once.
#include "mpi_passthrough/forward.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <string>

#include "api/mpitrampoline/surface.h"
#include "base/error.h"
#include "base/symbol.h"

namespace {

using lockstep::Error;

namespace standard {
constexpr int kSuccess = 0, kThreadMultiple = 4096;
constexpr Handle kCommNull = 0x100, kCommWorld = 0x101, kErrorsReturn = 0x143;
constexpr Handle kInt = 0x209, kMin = 0x22;
const void* const kInPlace = reinterpret_cast<const void*>(1);
constexpr void* kStatusIgnore = nullptr;
}  // namespace standard

constexpr int kFailure = -1;  // no error code of an MPI is negative
thread_local std::string error_text;

struct Library {
  void* handle;

  void* symbol(const char* name) const {
    if (void* found = dlsym(handle, name)) return found;
    throw Error(std::string("it has no function ") + name);
  }
};
template <typename... Arguments>
using Function = lockstep::Symbol<int(Arguments...)>;

struct Mpi {
  Library library;
  Function<int*, char***, int, int*> init_thread{library, "MPI_Init_thread"};
  Function<> finalize{library, "MPI_Finalize"};
  Function<Handle, Handle> comm_set_errhandler{library, "MPI_Comm_set_errhandler"};
  Function<Handle, int*> comm_rank{library, "MPI_Comm_rank"};
  Function<Handle, int*> comm_size{library, "MPI_Comm_size"};
  Function<Handle, int, int, Handle*> comm_split{library, "MPI_Comm_split"};
  Function<Handle> barrier{library, "MPI_Barrier"};
  Function<Handle*> comm_free{library, "MPI_Comm_free"};
  Function<const void*, void*, int, Handle, Handle, Handle> allreduce{library, "MPI_Allreduce"};
  Function<const void*, int, Handle, void*, int, Handle, Handle> allgather{library,
                                                                           "MPI_Allgather"};
  Function<const void*, void*, const int*, Handle, Handle, Handle> reduce_scatter{
      library, "MPI_Reduce_scatter"};
  Function<const void*, int, Handle, int, int, Handle, Handle*> isend{library, "MPI_Isend"};
  Function<void*, int, Handle, int, int, Handle, Handle*> irecv{library, "MPI_Irecv"};
  Function<Handle*, void*> wait{library, "MPI_Wait"};
  Function<const void*, int, Handle, int, int, void*, int, Handle, int, int, Handle, void*>
      sendrecv{library, "MPI_Sendrecv"};
  Function<int, char*, int*> error_string{library, "MPI_Error_string"};
};

const Mpi* opened = nullptr;  // set before jaxlib is loaded, never again
std::atomic<bool> running{false};

std::mutex split_mutex;     // one MPI_Comm_split at a time, as MPI demands; guards what follows
std::string split_failure;  // the first one

const Mpi& mpi() {
  if (!running)
    throw Error(
        "lockstep: jaxlib uses an MPI that was not started. `import lockstep` has to come before "
        "jax, in every process.");
  return *opened;
}

std::string text_of(int code) {
  char text[kErrorText + 1] = "";
  int length = 0;
  opened->error_string(code, text, &length);
  return text;
}

void check(int code) {
  if (code != standard::kSuccess) throw Error(text_of(code));
}

template <typename Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    error_text = error.what();
    return kFailure;
  }
}

// A communicator that could not be made is MPIABI_COMM_NULL, which is the value of no handle of an
// MPI: those are pointers, or integers with their highest bits set.
Handle communicator(Handle handle) {
  if (handle == MPIABI_COMM_WORLD) return standard::kCommWorld;
  if (handle != MPIABI_COMM_NULL) return handle;
  const std::lock_guard lock(split_mutex);
  throw Error(split_failure);
}

Handle datatype(Handle handle) {
  constexpr std::pair<Handle, Handle> kKnown[] = {{MPIABI_BYTE, 0x247},
                                                  {MPIABI_INT8_T, 0x240},
                                                  {MPIABI_INT16_T, 0x248},
                                                  {MPIABI_INT32_T, 0x250},
                                                  {MPIABI_INT64_T, 0x258},
                                                  {MPIABI_UINT8_T, 0x241},
                                                  {MPIABI_UINT16_T, 0x249},
                                                  {MPIABI_UINT32_T, 0x251},
                                                  {MPIABI_UINT64_T, 0x259},
                                                  {MPIABI_FLOAT, 0x210},
                                                  {MPIABI_DOUBLE, 0x214},
                                                  {MPIABI_C_COMPLEX, 0x212},
                                                  {MPIABI_C_DOUBLE_COMPLEX, 0x216}};
  return value_of(handle, kKnown,
                  "lockstep: jaxlib sent an MPI datatype that Lockstep does not know.");
}

Handle operation(Handle handle) {
  constexpr std::pair<Handle, Handle> kKnown[] = {
      {MPIABI_SUM, 0x21}, {MPIABI_MIN, standard::kMin}, {MPIABI_MAX, 0x23}, {MPIABI_PROD, 0x24}};
  return value_of(handle, kKnown,
                  "lockstep: jaxlib sent an MPI operation that Lockstep does not know.");
}

// The key is this process's position in the clique. Where it is not its rank in the new
// communicator, processes that asked for different cliques have met in one, and all of them must
// hear of it.
Handle split(int color, int key) {
  Handle made = standard::kCommNull;
  check(mpi().comm_split(standard::kCommWorld, color, key, &made));
  int rank = 0;
  check(mpi().comm_rank(made, &rank));
  const int right = rank == key;
  int all_right = 0;
  check(mpi().allreduce(&right, &all_right, 1, standard::kInt, standard::kMin, made));
  if (!all_right)
    throw Error(
        "lockstep: the processes asked MPI for communicators in different orders. With a real MPI "
        "all processes have to start the same computations in the same order, each over all "
        "processes, with one device in each. --collectives lockstep has no such limits.");
  return made;
}

}  // namespace

extern "C" {

const char* lockstep_mpi_last_error() { return error_text.c_str(); }

int lockstep_mpi_open(const char* path) {
  return guarded([&] {
    if (opened) return 0;
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw Error(dlerror());
    opened = new Mpi{{library}};
    return 0;
  });
}

int lockstep_mpi_start(int processes) {
  return guarded([&] {
    if (running) return 0;
    if (!opened) throw Error("lockstep_mpi_open was not called");
    int provided = 0, size = 0;
    check(opened->init_thread(nullptr, nullptr, standard::kThreadMultiple, &provided));
    check(opened->comm_set_errhandler(standard::kCommWorld, standard::kErrorsReturn));
    check(opened->comm_size(standard::kCommWorld, &size));
    if (size != processes)
      throw Error("MPI knows of " + std::to_string(size) + " of the job's " +
                  std::to_string(processes) + " processes");
    if (provided != standard::kThreadMultiple)
      throw Error("this MPI lets only one thread call it (no MPI_THREAD_MULTIPLE)");
    check(opened->barrier(standard::kCommWorld));
    running = true;
    return 0;
  });
}

void lockstep_mpi_abandon() { running = false; }

int MPIABI_Init_thread(int*, char***, int, int* provided) {
  *provided = static_cast<int>(MPIABI_THREAD_MULTIPLE);
  return guarded([] {
    mpi();
    return 0;
  });
}

int MPIABI_Finalize() { return running.exchange(false) ? opened->finalize() : standard::kSuccess; }

int MPIABI_Initialized(int* flag) {
  *flag = running;
  return standard::kSuccess;
}

int MPIABI_Finalized(int* flag) {
  *flag = !running;
  return standard::kSuccess;
}

// XLA refuses communicators to threads that are not "main". Any thread may call this MPI.
int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return standard::kSuccess;
}

int MPIABI_Comm_rank(Handle comm, int* rank) {
  return guarded([&] { return mpi().comm_rank(communicator(comm), rank); });
}

int MPIABI_Comm_size(Handle comm, int* size) {
  return guarded([&] { return mpi().comm_size(communicator(comm), size); });
}

int MPIABI_Comm_split(Handle, int color, int key, Handle* out) {
  *out = MPIABI_COMM_NULL;
  return guarded([&] {
    const std::lock_guard lock(split_mutex);
    try {
      *out = split(color, key);
    } catch (const Error& error) {
      if (split_failure.empty()) split_failure = error.what();
      throw;
    }
    return standard::kSuccess;
  });
}

// XLA frees communicators after MPI_Finalize, which MPI forbids; by then they are gone anyway.
int MPIABI_Comm_free(Handle* comm) {
  const bool held = running && *comm != MPIABI_COMM_NULL && *comm != MPIABI_COMM_WORLD;
  const int status = held ? opened->comm_free(comm) : standard::kSuccess;
  *comm = MPIABI_COMM_NULL;
  return status;
}

// MPI refuses two equal buffers, which XLA passes for a reduction in place.
int MPIABI_Allreduce(const void* in, void* out, int count, Handle type, Handle op, Handle comm) {
  return guarded([&] {
    return mpi().allreduce(in == out ? standard::kInPlace : in, out, count, datatype(type),
                           operation(op), communicator(comm));
  });
}

int MPIABI_Allgather(const void* in, int count, Handle type, void* out, int out_count,
                     Handle out_type, Handle comm) {
  return guarded([&] {
    return mpi().allgather(in, count, datatype(type), out, out_count, datatype(out_type),
                           communicator(comm));
  });
}

int MPIABI_Reduce_scatter(const void* in, void* out, const int* counts, Handle type, Handle op,
                          Handle comm) {
  return guarded([&] {
    return mpi().reduce_scatter(in, out, counts, datatype(type), operation(op), communicator(comm));
  });
}

int MPIABI_Isend(const void* data, int count, Handle type, int target, int tag, Handle comm,
                 Handle* request) {
  return guarded([&] {
    return mpi().isend(data, count, datatype(type), target, tag, communicator(comm), request);
  });
}

int MPIABI_Irecv(void* data, int count, Handle type, int source, int tag, Handle comm,
                 Handle* request) {
  return guarded([&] {
    return mpi().irecv(data, count, datatype(type), source, tag, communicator(comm), request);
  });
}

int MPIABI_Wait(Handle* request, void*) {
  return guarded([&] { return mpi().wait(request, standard::kStatusIgnore); });
}

int MPIABI_Sendrecv(const void* from, int count, Handle type, int target, int tag, void* to,
                    int to_count, Handle to_type, int source, int to_tag, Handle comm, void*) {
  return guarded([&] {
    return mpi().sendrecv(from, count, datatype(type), target, tag, to, to_count, datatype(to_type),
                          source, to_tag, communicator(comm), standard::kStatusIgnore);
  });
}

int MPIABI_Error_string(int code, char* text, int* length) {
  write_text(code == kFailure ? error_text : text_of(code), text, length);
  return standard::kSuccess;
}

// MPItrampoline prints it when MPITRAMPOLINE_VERBOSE is set, before there is an MPI to ask.
int MPIABI_Get_library_version(char* text, int* length) {
  write_text("Lockstep's way to an MPI of standard ABI", text, length);
  return standard::kSuccess;
}

}  // extern "C"
