// The MPI functions that XLA calls, in the terms of the engine: Init_thread, Finalize, Initialized,
// Finalized, Is_thread_main, Get_library_version, Comm_rank, Comm_size, Comm_split, Comm_free,
// Allreduce, Allgather, Reduce_scatter, Isend, Irecv, Wait, Sendrecv and Error_string. jaxlib
// resolves all names of surface.inc, and calls no other one. An error becomes a return code here,
// and XLA asks MPI_Error_string for its text on the same thread at once.
#include <dlfcn.h>

#include <memory>
#include <optional>
#include <string>

#include "api/mpitrampoline/state.h"
#include "api/mpitrampoline/surface.h"
#include "base/error.h"
#include "xla_probe/origin.h"

namespace {

using lockstep::Call;
using lockstep::Communicator;
using lockstep::DType;
using lockstep::Engine;
using lockstep::Error;
using lockstep::Op;
using lockstep::Reduction;

constexpr int kSuccess = 0;
constexpr int kFailure = 1;
thread_local std::string error_text;

// What a communicator handle points to. A clique that could not be made still gets one, because XLA
// goes on with whatever MPI_Comm_split leaves: every use of it then fails with the reason.
struct CommunicatorHandle {
  std::unique_ptr<Communicator> communicator;
  std::string error;
};

struct RequestHandle {
  Communicator* communicator;
  lockstep::Request* request;
};

// Whether this thread runs Python below XLA: JAX raises there what a call fails with, at once.
bool is_of_python() {
  static const auto state =
      reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  return state != nullptr && state() != nullptr;
}

// Counts this thread while it is in a call, if it is one of Python's.
class PythonCall {
 public:
  PythonCall() : counted_(is_of_python()) {
    if (counted_) Engine::instance().enter_from_python();
  }
  ~PythonCall() {
    if (counted_) Engine::instance().leave_to_python();
  }
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;

 private:
  const bool counted_;
};

template <typename Body>
int guarded(Body body) {
  const PythonCall call;
  try {
    body();
    return kSuccess;
  } catch (const std::exception& error) {
    error_text = error.what();
    if (!is_of_python()) lockstep::Engine::instance().count_failure();
    return kFailure;
  }
}

Communicator& communicator(Handle handle) {
  if (handle == MPIABI_COMM_WORLD)
    throw Error("lockstep: jaxlib used MPI_COMM_WORLD for data, which no known version does.");
  auto* held = reinterpret_cast<CommunicatorHandle*>(handle);
  if (!held->communicator) throw Error(held->error);
  return *held->communicator;
}

DType dtype_of(Handle datatype) {
  constexpr std::pair<Handle, DType> kKnown[] = {{MPIABI_BYTE, DType::kByte},
                                                 {MPIABI_INT8_T, DType::kI8},
                                                 {MPIABI_INT16_T, DType::kI16},
                                                 {MPIABI_INT32_T, DType::kI32},
                                                 {MPIABI_INT64_T, DType::kI64},
                                                 {MPIABI_UINT8_T, DType::kU8},
                                                 {MPIABI_UINT16_T, DType::kU16},
                                                 {MPIABI_UINT32_T, DType::kU32},
                                                 {MPIABI_UINT64_T, DType::kU64},
                                                 {MPIABI_FLOAT, DType::kF32},
                                                 {MPIABI_DOUBLE, DType::kF64},
                                                 {MPIABI_C_COMPLEX, DType::kC64},
                                                 {MPIABI_C_DOUBLE_COMPLEX, DType::kC128}};
  return value_of(datatype, kKnown,
                  "lockstep: jaxlib sent an MPI datatype that the engine does not know.");
}

Reduction reduction_of(Handle op) {
  constexpr std::pair<Handle, Reduction> kKnown[] = {{MPIABI_SUM, Reduction::kSum},
                                                     {MPIABI_PROD, Reduction::kProduct},
                                                     {MPIABI_MIN, Reduction::kMin},
                                                     {MPIABI_MAX, Reduction::kMax}};
  return value_of(op, kKnown,
                  "lockstep: jaxlib sent an MPI operation that the engine does not know.");
}

// Counts cross the interface as int: XLA cuts larger ones off, and half of the wrong values are
// negative.
std::size_t checked(int count) {
  if (count < 0)
    throw Error(
        "lockstep: one collective moves more than 2^31 - 1 elements (bytes, for all but "
        "reductions) of one device, which jaxlib's MPI interface cannot express. Use more devices, "
        "or split the array.");
  return static_cast<std::size_t>(count);
}

// Finds the origin of the collective that XLA is calling; `frame` is that of the interface's
// function.
lockstep::Origin origin_of(const void* frame) {
  Engine& engine = Engine::instance();
  lockstep::Origin origin;
  if (engine.checks_programs()) {
    origin = lockstep::origin_of_call(frame);
    engine.note_origin(origin.known());
  }
  origin.site = engine.site();
  return origin;
}

int run(const void* frame, Handle comm, Op op, int count, Handle datatype,
        std::optional<Handle> reduction, const void* in, void* out) {
  return guarded([&] {
    Call call;
    call.op = op;
    if (reduction) call.reduction = reduction_of(*reduction);
    call.dtype = dtype_of(datatype);
    call.count = checked(count);
    call.in = static_cast<const std::byte*>(in);
    call.out = static_cast<std::byte*>(out);
    call.origin = origin_of(frame);
    // Counted first: once any rank has its result, the calls of all have been counted.
    Engine::instance().count(op);
    communicator(comm).run(std::move(call));
  });
}

Handle hold(Communicator& communicator, lockstep::Request* request) {
  return reinterpret_cast<Handle>(new RequestHandle{&communicator, request});
}

}  // namespace

extern "C" {

int MPIABI_Init_thread(int*, char***, int, int* provided) {
  *provided = static_cast<int>(MPIABI_THREAD_MULTIPLE);
  return guarded([] { Engine::instance().initialize(); });
}

// XLA frees communicators after this; nothing here may depend on the order.
int MPIABI_Finalize() { return kSuccess; }

int MPIABI_Initialized(int* flag) {
  *flag = 1;
  return kSuccess;
}

int MPIABI_Finalized(int* flag) {
  *flag = 0;
  return kSuccess;
}

// XLA refuses communicators to threads that are not "main". Every thread may call the engine.
int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return kSuccess;
}

int MPIABI_Comm_rank(Handle comm, int* rank) {
  if (comm == MPIABI_COMM_WORLD)
    return guarded([&] { *rank = Engine::instance().job().process(); });
  return guarded([&] { *rank = communicator(comm).rank(); });
}

int MPIABI_Comm_size(Handle comm, int* size) {
  if (comm == MPIABI_COMM_WORLD)
    return guarded([&] { *size = Engine::instance().job().num_processes(); });
  return guarded([&] { *size = communicator(comm).size(); });
}

int MPIABI_Comm_split(Handle, int color, int key, Handle* out) {
  auto held = std::make_unique<CommunicatorHandle>();
  const int status =
      guarded([&] { held->communicator = Engine::instance().communicator(color, key); });
  if (status != kSuccess) held->error = error_text;
  *out = reinterpret_cast<Handle>(held.release());
  return status;
}

int MPIABI_Comm_free(Handle* comm) {
  if (*comm != MPIABI_COMM_WORLD && *comm != MPIABI_COMM_NULL)
    delete reinterpret_cast<CommunicatorHandle*>(*comm);
  *comm = MPIABI_COMM_NULL;
  return kSuccess;
}

int MPIABI_Allreduce(const void* in, void* out, int count, Handle datatype, Handle op,
                     Handle comm) {
  return run(__builtin_frame_address(0), comm, Op::kAllReduce, count, datatype, op,
             reinterpret_cast<Handle>(in) == MPIABI_IN_PLACE ? out : in, out);
}

int MPIABI_Allgather(const void* in, int count, Handle datatype, void* out, int, Handle,
                     Handle comm) {
  return run(__builtin_frame_address(0), comm, Op::kAllGather, count, datatype, std::nullopt, in,
             out);
}

// XLA gives every rank the same count.
int MPIABI_Reduce_scatter(const void* in, void* out, const int* counts, Handle datatype, Handle op,
                          Handle comm) {
  return run(__builtin_frame_address(0), comm, Op::kReduceScatter, counts[0], datatype, op, in,
             out);
}

int MPIABI_Isend(const void* data, int count, Handle datatype, int target, int, Handle comm,
                 Handle* request) {
  const void* frame = __builtin_frame_address(0);
  return guarded([&] {
    const std::size_t bytes = checked(count) * size_of(dtype_of(datatype));
    Communicator& end = communicator(comm);
    *request =
        hold(end, end.send(target, static_cast<const std::byte*>(data), bytes, origin_of(frame)));
  });
}

int MPIABI_Irecv(void* data, int count, Handle datatype, int source, int, Handle comm,
                 Handle* request) {
  const void* frame = __builtin_frame_address(0);
  return guarded([&] {
    const std::size_t bytes = checked(count) * size_of(dtype_of(datatype));
    Communicator& end = communicator(comm);
    *request =
        hold(end, end.receive(source, static_cast<std::byte*>(data), bytes, origin_of(frame)));
    Engine::instance().count(Op::kPermute);
  });
}

int MPIABI_Wait(Handle* request, void*) {
  if (*request == MPIABI_REQUEST_NULL) return kSuccess;
  const std::unique_ptr<RequestHandle> held(reinterpret_cast<RequestHandle*>(*request));
  *request = MPIABI_REQUEST_NULL;
  return guarded([&] { held->communicator->wait(held->request); });
}

int MPIABI_Sendrecv(const void* from, int count, Handle datatype, int target, int, void* to, int,
                    Handle, int source, int, Handle comm, void*) {
  const void* frame = __builtin_frame_address(0);
  return guarded([&] {
    const std::size_t bytes = checked(count) * size_of(dtype_of(datatype));
    communicator(comm).send_receive(static_cast<const std::byte*>(from), target,
                                    static_cast<std::byte*>(to), source, bytes, origin_of(frame));
    Engine::instance().count(Op::kAllToAll);
  });
}

int MPIABI_Error_string(int, char* text, int* length) {
  write_text(error_text, text, length);
  return kSuccess;
}

// MPItrampoline prints it when MPITRAMPOLINE_VERBOSE is set.
int MPIABI_Get_library_version(char* text, int* length) {
  write_text("Lockstep " LOCKSTEP_VERSION, text, length);
  return kSuccess;
}

}  // extern "C"
