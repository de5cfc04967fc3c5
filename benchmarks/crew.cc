// Collectives of the devices of one process, without JAX: what the ranks that wait for their leader
// add when they share its work.
//
//   c++ -O3 -std=c++20 -pthread -Inative -DLOCKSTEP_SEGMENT_GIB=16 -o /tmp/crew
//       benchmarks/crew.cc $(find build/.venv -path '*engine_objects*' -name '*.o') -ldl
//   /tmp/crew DEVICES CORES
//
// The process is told that it has CORES: with fewer than DEVICES its ranks do not share. A row
// shows the least and the median of the rounds, in microseconds a call. BYTES are those of one
// device's input.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "api/communicator.h"
#include "core/job.h"

namespace lockstep {
namespace {

constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter};
constexpr std::size_t kSizes[] = {4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20};
constexpr int kRounds = 15;

double now_us() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

struct Buffers {
  std::vector<float> in, out;
};

Call call_of(Op op, std::size_t bytes, std::size_t devices, Buffers& buffers) {
  Call call;
  call.op = op;
  call.dtype = DType::kF32;
  call.reduction = op == Op::kAllGather ? Reduction::kNone : Reduction::kSum;
  call.count = bytes / 4 / (op == Op::kReduceScatter ? devices : 1);
  call.in = reinterpret_cast<std::byte*>(buffers.in.data());
  call.out = reinterpret_cast<std::byte*>(buffers.out.data());
  return call;
}

void measure(Job& job, std::size_t devices) {
  std::vector<int> all(devices);
  for (std::size_t i = 0; i < devices; ++i) all[i] = static_cast<int>(i);
  Clique& clique = job.clique(all);
  std::barrier meet(static_cast<std::ptrdiff_t>(devices));
  const auto rank = [&](int index) {
    Communicator end(clique, index);
    for (const Op op : kOps)
      for (const std::size_t bytes : kSizes) {
        Buffers buffers{std::vector<float>(bytes / 4, 1.F),
                        std::vector<float>(bytes / 4 * (op == Op::kAllGather ? devices : 1))};
        const Call call = call_of(op, bytes, devices, buffers);
        const int calls = static_cast<int>(std::clamp<std::size_t>((32 << 20) / bytes, 3, 500));
        std::vector<double> times;
        for (int round = 0; round < kRounds; ++round) {
          meet.arrive_and_wait();
          const double start = now_us();
          for (int i = 0; i < calls; ++i) end.run(call);
          times.push_back((now_us() - start) / calls);
        }
        std::ranges::sort(times);
        if (index == 0)
          std::printf("%-14s %9zu %10.1f %10.1f\n", name_of(op), bytes, times[0],
                      times[kRounds / 2]);
      }
  };
  std::vector<std::thread> threads;
  for (const int index : all) threads.emplace_back(rank, index);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::size_t devices = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2;
  JobOptions options;
  const Descriptor arena = Arena::create(1);
  options.arena_fd = arena.get();
  options.nonce = 1;
  options.timeout_seconds = 60;
  options.cores = argc > 2 ? std::atoi(argv[2]) : 2;
  options.labels = {"process 0"};
  Job job(std::move(options));
  std::vector<int> ids(devices);
  for (std::size_t i = 0; i < devices; ++i) ids[i] = static_cast<int>(i);
  job.set_devices(ids, std::vector<int>(devices, 0));
  measure(job, devices);
}
