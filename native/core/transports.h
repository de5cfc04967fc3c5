// The transports of a process, and which of them carries what goes to a peer: shared memory on this
// host; to other hosts TCP, or UCX with TCP beside it for everything but data. A new transport is
// made and chosen here, and nowhere else.
#pragma once

#include <memory>

#include "base/futex_wait.h"
#include "transport/shm/segment.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/endpoint.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace lockstep {

struct JobOptions;

class Transports {
 public:
  // Meets the processes of the other hosts, where there are any: `endpoint` says where they are,
  // and has the key, which `options` do not keep. The references outlive this. Throws Error.
  Transports(const JobOptions& options, EndpointOptions endpoint,
             const std::shared_ptr<Arena>& arena, const WakeUp& wake_up);
  ~Transports();

  Transport& to(int process) {
    if (!endpoint_ || !endpoint_->reaches(process)) return shm_;
    return ucx_ ? static_cast<Transport&>(*ucx_) : *tcp_;
  }

  // The connections to other hosts; null where there are none.
  Endpoint* endpoint() const { return endpoint_.get(); }

  // Their progress threads end: nothing is written into a ring any more.
  void stop();

 private:
  ShmTransport shm_;
  std::unique_ptr<UcxTransport> ucx_;  // the companion of the endpoint
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<TcpTransport> tcp_;
};

}  // namespace lockstep
