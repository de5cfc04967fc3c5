// Collectives between hosts without JAX, for a profiler: forked processes, each with shared memory
// of its own as if it were alone on its host, over loopback.
//
//   c++ -O3 -g -std=c++20 -pthread -Inative -DLOCKSTEP_SEGMENT_GIB=16 -o /tmp/transport
//       benchmarks/transport.cc $(find build/.venv -path '*engine_objects*' -name '*.o') -ldl
//   /tmp/transport HOSTS tls|none [OPERATION [BYTES [SECONDS]]]
//   perf record -g /tmp/transport 2 tls all-reduce 1048576 5
//
// `none`: without encryption. BYTES are those of one device's input. A row shows the least and the
// median of the rounds, in microseconds a call, of process 0, and its processor time a call. How
// fast the cipher is by itself:
//   openssl speed -evp aes-128-gcm -bytes 16384        and with -decrypt
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "api/communicator.h"
#include "base/error.h"
#include "core/job.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kNonce = 1;
constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll};
constexpr std::size_t kSizes[] = {1 << 10, 64 << 10, 1 << 20, 16 << 20};
constexpr int kRounds = 9;

struct Listener {
  Descriptor fd;
  std::string address;
};

Listener listen_anywhere() {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  auto* any = reinterpret_cast<sockaddr*>(&name);
  if (bind(fd.get(), any, size) != 0 || listen(fd.get(), 64) != 0 ||
      getsockname(fd.get(), any, &size) != 0)
    throw Error("no port to listen on");
  return {std::move(fd), "127.0.0.1:" + std::to_string(ntohs(name.sin_port))};
}

double now_us() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

double processor_us() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

class Host {
 public:
  Host(int process, const std::vector<Listener>& ports, bool encrypt) : process_(process) {
    const Descriptor arena = Arena::create(kNonce);
    JobOptions options;
    options.process = process;
    options.arena_fd = arena.get();
    options.nonce = kNonce;
    options.timeout_seconds = 60;
    options.recorder.enabled = false;
    for (std::size_t i = 0; i < ports.size(); ++i) {
      const int other = static_cast<int>(i);
      options.labels.push_back("process " + std::to_string(other));
      options.endpoint.addresses.push_back(other == process ? "" : ports[i].address);
      devices_.push_back(other);
      options.hosts.push_back(other);
    }
    options.endpoint.listener = ports[static_cast<std::size_t>(process)].fd.get();
    options.endpoint.key = SecretBytes(32, std::byte{7});
    options.endpoint.tls_library = "libssl.so.3";
    options.endpoint.encrypt = encrypt;
    job_ = std::make_unique<Job>(std::move(options));
    job_->set_devices(devices_, devices_);
    end_ = std::make_unique<Communicator>(job_->clique(devices_), process);
  }

  void measure(Op op, std::size_t bytes, double seconds) {
    prepare(op, bytes);
    for (int i = 0; i < 5; ++i) end_->run(call_);
    const int calls = agreed_calls(op, bytes, seconds);
    std::vector<double> took;
    const double used = processor_us();
    for (int round = 0; round < kRounds; ++round) {
      const double start = now_us();
      for (int i = 0; i < calls; ++i) end_->run(call_);
      took.push_back((now_us() - start) / calls);
    }
    const double each = (processor_us() - used) / (kRounds * calls);
    std::ranges::sort(took);
    if (process_ == 0)
      std::printf("%-15s %9zu bytes: least %9.1f us, median %9.1f us, processor %9.1f us\n",
                  name_of(op), bytes, took.front(), took[took.size() / 2], each);
    std::fflush(stdout);
  }

 private:
  // The buffers of an operation, in which a device gives `bytes` bytes.
  void prepare(Op op, std::size_t bytes) {
    const std::size_t ranks = devices_.size();
    const bool shares = op == Op::kReduceScatter || op == Op::kAllToAll;
    const std::size_t block = std::max<std::size_t>(8, shares ? bytes / ranks / 8 * 8 : bytes);
    in_.assign(shares ? ranks * block : block, std::byte{0});
    out_.assign(op == Op::kAllGather || op == Op::kAllToAll ? ranks * block : block, std::byte{1});
    call_ = Call{};
    call_.op = op;
    call_.dtype = DType::kF32;
    call_.count = block / 4;
    if (op == Op::kAllReduce || op == Op::kReduceScatter) call_.reduction = Reduction::kSum;
    call_.in = in_.data();
    call_.out = out_.data();
    if (op != Op::kAllToAll) return;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      call_.ins.push_back(in_.data() + rank * block);
      call_.outs.push_back(out_.data() + rank * block);
    }
  }

  // As many as fit into the time of a round; the processes take the largest of their numbers.
  int agreed_calls(Op op, std::size_t bytes, double seconds) {
    const double start = now_us();
    for (int i = 0; i < 5; ++i) end_->run(call_);
    const double each = (now_us() - start) / 5;
    std::int32_t mine = std::max(1, static_cast<int>(1e6 * seconds / kRounds / each)), all = 0;
    Call agree;
    agree.dtype = DType::kI32;
    agree.reduction = Reduction::kMax;
    agree.count = 1;
    agree.in = reinterpret_cast<const std::byte*>(&mine);
    agree.out = reinterpret_cast<std::byte*>(&all);
    end_->run(agree);
    prepare(op, bytes);
    return all;
  }

  const int process_;
  std::vector<int> devices_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Communicator> end_;
  std::vector<std::byte> in_, out_;
  Call call_;
};

void run(int process, const std::vector<Listener>& ports, int count, char** arguments) {
  Host host(process, ports, count <= 2 || std::strcmp(arguments[2], "none") != 0);
  const double seconds = count > 5 ? std::atof(arguments[5]) : 0.3;
  for (const Op op : kOps)
    for (const std::size_t bytes : kSizes) {
      if (count > 3 && std::strcmp(arguments[3], name_of(op)) != 0) continue;
      if (count > 4 && std::strtoull(arguments[4], nullptr, 10) != bytes) continue;
      host.measure(op, bytes, seconds);
    }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  using namespace lockstep;
  std::vector<Listener> ports(static_cast<std::size_t>(count > 1 ? std::atoi(arguments[1]) : 2));
  for (Listener& port : ports) port = listen_anywhere();
  std::vector<pid_t> children;
  for (std::size_t process = 1; process < ports.size(); ++process) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run(static_cast<int>(process), ports, count, arguments);
    std::_Exit(0);
  }
  run(0, ports, count, arguments);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}
