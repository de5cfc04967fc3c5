// The part of UCX's C interface (ucp, from version 1.12 on) that the transport needs.
//
// UCX is opened at run time and its headers are not needed to compile, so its structures stand here
// again. They keep their layout: a field counts only where its bit in the mask is set, and new
// fields come behind the old ones. `native/tests/ucx_abi.cc` compares them with UCX's headers where
// those are installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::ucp {

// The interface that is asked for. A library with a lower number is too old.
inline constexpr unsigned kMajor = 1, kMinor = 12;

struct Context;  // UCX's own: ucp_context, ucp_worker, ucp_ep, ucp_config
struct Worker;
struct Ep;
struct Config;

using Status = std::int8_t;  // an enum of one byte
inline constexpr Status kOk = 0, kInProgress = 1, kCanceled = -16;

// What a call that may take longer returns: null when it is done, an error, or a request.
using StatusPointer = void*;
inline bool is_error(StatusPointer result) {
  return reinterpret_cast<std::uintptr_t>(result) >= static_cast<std::uintptr_t>(-100);
}
inline Status error_of(StatusPointer result) {
  return static_cast<Status>(reinterpret_cast<std::intptr_t>(result));
}

struct Params {
  static constexpr std::uint64_t kFeatures = 1 << 0;
  static constexpr std::uint64_t kEstimatedEps = 1 << 6;
  static constexpr std::uint64_t kWakeUp = 1 << 4, kActiveMessages = 1 << 6;  // features

  std::uint64_t field_mask;
  std::uint64_t features;
  std::size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  std::uint64_t tag_sender_mask;
  int mt_workers_shared;
  std::size_t estimated_num_eps;
  std::size_t estimated_num_ppn;
  const char* name;
};

struct WorkerParams {
  static constexpr std::uint64_t kThreadMode = 1 << 0;
  static constexpr int kSerialized = 1;  // threads call one after the other

  std::uint64_t field_mask;
  int thread_mode;
  unsigned long cpu_mask[16];
  unsigned events;
  void* user_data;
  int event_fd;
  std::uint64_t flags;
  const char* name;
  std::size_t am_alignment;
  std::uint64_t client_id;
};

struct WorkerAttributes {
  static constexpr std::uint64_t kAddress = 1 << 1, kAddressFlags = 1 << 2, kMaxHeader = 1 << 3;
  static constexpr std::uint32_t kNetworkOnly = 1;  // address flags

  std::uint64_t field_mask;
  int thread_mode;
  std::uint32_t address_flags;
  void* address;  // to be released
  std::size_t address_length;
  std::size_t max_am_header;
  char name[32];
  std::size_t max_debug_string;
};

struct EpParams {
  static constexpr std::uint64_t kAddress = 1 << 0, kErrorMode = 1 << 1, kErrorHandler = 1 << 2;
  static constexpr int kPeerFailure = 1;  // error mode

  std::uint64_t field_mask;
  const void* address;
  int err_mode;
  struct {
    void (*call)(void* argument, Ep* ep, Status status);
    void* argument;
  } error_handler;
  void* user_data;
  unsigned flags;
  struct {
    const void* address;
    std::uint32_t bytes;
  } sockaddr;
  void* conn_request;
  const char* name;
  struct {
    const void* address;
    std::uint32_t bytes;
  } local_sockaddr;
};

struct RequestParam {
  static constexpr std::uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kFlags = 1 << 4;
  static constexpr std::uint32_t kForce = 1;  // flags of a close

  std::uint32_t op_attr_mask;
  std::uint32_t flags;
  void* request;
  union {
    void (*sent)(void* request, Status status, void* user_data);
    void (*received)(void* request, Status status, std::size_t bytes, void* user_data);
  } callback;
  std::uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int memory_type;
  std::size_t* received_length;
  void* memh;
};

struct ReceiveParam {
  static constexpr std::uint64_t kRendezvous = 1 << 17;

  std::uint64_t attributes;
  Ep* reply_ep;
};

struct HandlerParam {
  static constexpr std::uint64_t kId = 1 << 0, kFlags = 1 << 1, kCallback = 1 << 2,
                                 kArgument = 1 << 3;
  static constexpr std::uint32_t kWholeMessage = 1;  // flags

  std::uint64_t field_mask;
  unsigned id;
  std::uint32_t flags;
  Status (*callback)(void* argument, const void* header, std::size_t header_bytes, void* data,
                     std::size_t bytes, const ReceiveParam* param);
  void* argument;
};

}  // namespace lockstep::ucp
