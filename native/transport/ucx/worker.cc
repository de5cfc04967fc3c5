#include "transport/ucx/worker.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/signals.h"

namespace lockstep {
namespace {

// The interval of checks that no event triggers.
constexpr std::chrono::milliseconds kCheckInterval{100};
// How many calls of UCX's progress in a row: then others get the lock.
constexpr int kBatch = 64;
constexpr std::chrono::microseconds kFlushInterval{50}, kMaxFlushInterval{1000};

}  // namespace

UcxWorker::Lock::Lock(UcxWorker& worker) : worker_(worker) {
  if (worker.mutex_.try_lock()) return;
  worker.waiting_.fetch_add(1);
  worker.mutex_.lock();
  worker.waiting_.fetch_sub(1);
}

UcxWorker::UcxWorker(const ucp::Library& library, std::size_t num_peers, const std::string& devices)
    : library_(library) {
  ucp::Config* read = nullptr;
  library.check(library.config_read(nullptr, nullptr, &read), "read its settings");
  const auto release = [&](ucp::Config* config) { library.config_release(config); };
  const std::unique_ptr<ucp::Config, decltype(release)> config(read, release);
  // Processes of one host have our shared memory; UCX would take room in /dev/shm for it.
  if (std::getenv("UCX_TLS") == nullptr)
    library.check(library.config_modify(read, "TLS", "^shm"), "leave shared memory out");
  // The network detects which processes are lost. UCX's keepalive would connect to processes that
  // have just ended, and may then end this one with an assertion (1.13.1 and 1.22.0).
  if (std::getenv("UCX_KEEPALIVE_INTERVAL") == nullptr)
    library.check(library.config_modify(read, "KEEPALIVE_INTERVAL", "inf"), "go without keepalive");
  if (!devices.empty())
    library.check(library.config_modify(read, "NET_DEVICES", devices.c_str()), "choose a network");
  ucp::Params params{};
  params.field_mask = ucp::Params::kFeatures | ucp::Params::kEstimatedEps;
  params.features = ucp::Params::kActiveMessages | ucp::Params::kWakeUp;
  params.estimated_num_eps = num_peers;
  library.check(library.init(ucp::kMajor, ucp::kMinor, &params, read, &context_), "start");
  ucp::WorkerParams worker{};
  worker.field_mask = ucp::WorkerParams::kThreadMode;
  worker.thread_mode = ucp::WorkerParams::kSerialized;
  try {
    library.check(library.worker_create(context_, &worker, &worker_), "make a worker");
    library.check(library.worker_get_efd(worker_, &fd_), "wait for messages");
  } catch (...) {
    if (worker_ != nullptr) library.worker_destroy(worker_);
    library.cleanup(context_);
    throw;
  }
}

// A forked child has its parent's connections: it must not speak over them.
UcxWorker::~UcxWorker() {
  if (getpid() != owner_) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  stop();
  if (abandoned_) return;
  library_.worker_destroy(worker_);
  library_.cleanup(context_);
}

std::vector<std::byte> UcxWorker::address() const {
  ucp::WorkerAttributes found{};
  found.field_mask = ucp::WorkerAttributes::kAddress | ucp::WorkerAttributes::kAddressFlags;
  found.address_flags = ucp::WorkerAttributes::kNetworkOnly;
  library_.check(library_.worker_query(worker_, &found), "name its address");
  const auto* bytes = static_cast<const std::byte*>(found.address);
  std::vector<std::byte> address(bytes, bytes + found.address_length);
  library_.worker_release_address(worker_, found.address);
  return address;
}

std::size_t UcxWorker::max_header() const {
  ucp::WorkerAttributes found{};
  found.field_mask = ucp::WorkerAttributes::kMaxHeader;
  library_.check(library_.worker_query(worker_, &found), "name its limits");
  return found.max_am_header;
}

void UcxWorker::start(std::function<void()> check) {
  check_ = std::move(check);
  thread_ = std::thread([this] { run(); });
}

void UcxWorker::stop() {
  if (getpid() != owner_ || over_.exchange(true)) return;
  {
    const Lock lock(*this);
    wake();
  }
  if (thread_.joinable()) thread_.join();
}

void UcxWorker::run() {
  block_signals();
  auto checked = Clock::now();
  while (!over_) {
    const bool sleeps = progress_and_arm();
    while (waiting_.load() != 0) sched_yield();
    pollfd request{fd_, POLLIN, 0};
    if (sleeps) poll(&request, 1, static_cast<int>(kCheckInterval.count()));
    if (Clock::now() < checked + kCheckInterval) continue;
    check_();
    checked = Clock::now();
  }
}

// Whether there is nothing to do until the descriptor is readable.
bool UcxWorker::progress_and_arm() {
  const Lock lock(*this);
  for (int i = 0; i < kBatch; ++i)
    if (library_.worker_progress(worker_) == 0) return library_.worker_arm(worker_) == ucp::kOk;
  return false;
}

void UcxWorker::progress() {
  constexpr int kAtOnce = 4;
  for (int i = 0; i < kAtOnce && library_.worker_progress(worker_) != 0; ++i) {
  }
}

void UcxWorker::try_progress() {
  if (!mutex_.try_lock()) return;
  progress();
  mutex_.unlock();
}

void UcxWorker::flush(Clock::time_point end, const std::atomic<std::uint32_t>& abort) {
  const ucp::RequestParam param{};
  ucp::StatusPointer request = nullptr;
  {
    const Lock lock(*this);
    request = library_.worker_flush(worker_, &param);
  }
  if (request == nullptr || ucp::is_error(request)) return;
  for (std::chrono::microseconds pause = kFlushInterval;;
       pause = std::min(2 * pause, kMaxFlushInterval)) {
    {
      const Lock lock(*this);
      library_.worker_progress(worker_);
      const bool done = library_.request_status(request) != ucp::kInProgress;
      if (done || Clock::now() >= end || abort.load() != 0) return library_.request_free(request);
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace lockstep
