// The transports of a process, and which of them carries what goes to a peer: shared memory on this
// host; to other hosts TCP, or UCX with TCP beside it for everything but data. A new transport is
// made and chosen here, and nowhere else.
#pragma once

#include <memory>

#include "base/futex_wait.h"
#include "control/network/endpoint.h"
#include "transport/shm/segment.h"
#include "transport/shm/shm_transport.h"
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
    if (!network().reaches(process)) return shm_;
    return ucx_ ? static_cast<Transport&>(*ucx_) : *tcp_;
  }

  Network& network() { return endpoint_ ? static_cast<Network&>(*endpoint_) : no_network_; }
  const Network& network() const {
    return endpoint_ ? static_cast<const Network&>(*endpoint_) : no_network_;
  }

  // Ends the progress threads: nothing is written into a ring any more.
  void stop();

 private:
  ShmTransport shm_;
  NoNetwork no_network_;
  std::unique_ptr<UcxTransport> ucx_;   // the companion of the endpoint
  std::unique_ptr<Endpoint> endpoint_;  // null: the job has one host
  std::unique_ptr<TcpTransport> tcp_;
};

}  // namespace lockstep
