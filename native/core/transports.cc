#include "core/transports.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "core/job.h"

namespace lockstep {
namespace {

bool has_other_hosts(const JobOptions& options) { return !options.endpoint.addresses.empty(); }

bool is_first_of_host(const JobOptions& options) {
  if (options.hosts.empty()) return options.process == 0;
  const int own = options.hosts[static_cast<std::size_t>(options.process)];
  return std::ranges::find(options.hosts, own) - options.hosts.begin() == options.process;
}

std::unique_ptr<UcxTransport> make_ucx(const JobOptions& options, Arena& arena,
                                       const WakeUp& wake_up) {
  if (options.ucx_libraries.empty() || !has_other_hosts(options) || options.is_agent())
    return nullptr;
  auto ucx = std::make_unique<UcxTransport>(options.ucx_libraries, options.endpoint.listener,
                                            options.process, options.labels, arena,
                                            options.timeout_seconds, wake_up);
  if (!ucx->warning().empty() && is_first_of_host(options)) log_or_drop(ucx->warning());
  return ucx;
}

std::unique_ptr<Endpoint> make_endpoint(const JobOptions& options, EndpointOptions endpoint,
                                        Companion* companion, const std::shared_ptr<Arena>& arena) {
  if (!has_other_hosts(options)) return nullptr;
  endpoint.companion = companion;
  endpoint.hosts = options.hosts;
  return std::make_unique<Endpoint>(std::move(endpoint), options.process, options.nonce,
                                    options.labels, arena);
}

}  // namespace

Transports::Transports(const JobOptions& options, EndpointOptions endpoint,
                       const std::shared_ptr<Arena>& arena, const WakeUp& wake_up)
    : shm_(*arena, options.process, options.labels, options.single_copy && !options.is_agent(),
           has_other_hosts(options)),
      ucx_(make_ucx(options, *arena, wake_up)),
      endpoint_(make_endpoint(options, std::move(endpoint), ucx_.get(), arena)),
      tcp_(endpoint_
               ? std::make_unique<TcpTransport>(*endpoint_, *endpoint_, arena->header().abort_state,
                                                options.timeout_seconds, wake_up)
               : nullptr) {
  if (ucx_) ucx_->start(*endpoint_, *tcp_);
}

Transports::~Transports() { stop(); }

void Transports::stop() {
  endpoint_.reset();
  ucx_.reset();
}

}  // namespace lockstep
