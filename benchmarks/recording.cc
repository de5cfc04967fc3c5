// What the recorder costs a small collective, without JAX: the engine of this checkout in one
// program.
//
//   c++ -O3 -std=c++20 -pthread -Inative -DLOCKSTEP_SEGMENT_GIB=16 -o /tmp/recording
//       benchmarks/recording.cc $(find build/.venv -path '*engine_objects*' -name '*.o') -ldl
//   /tmp/recording [rounds]
//
// First each part on one thread; then all-reduces of 8 bytes between two processes, each on a core
// of its own, in rounds that take turns: without the recorder, with it, and with it and the scan
// for XLA's numbers. Shown are the least round and the quartiles of the rounds, and of their ratios
// to the round without it just before.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "api/communicator.h"
#include "core/job.h"
#include "recorder/recorder.h"
#include "xla_probe/origin.h"

// What XLA has on its stack, as far as the scan for it can tell.
namespace xla::cpu {
struct CpuCollectives {
  struct Executor {
    virtual ~Executor() = default;
    std::int64_t execution = 77;
    const void* list[3] = {this, this + 1, this + 1};
    std::int32_t participants = 2, kind = 0;
    std::int64_t channel = 3;
  };
};
}  // namespace xla::cpu

namespace lockstep {
namespace {

constexpr int kCalls = 2000;  // of a round
constexpr std::uint64_t kNonce = 1;
enum Mode { kOff, kRecorded, kLooked, kModes };
constexpr const char* kNames[] = {"unrecorded", "recorded", "recorded, with the look"};

double now_ns() { return static_cast<double>(nanoseconds(Clock::now())); }

void hold_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

template <typename Body>
double least(int rounds, Body body) {
  double found = 1e18;
  for (int round = 0; round < rounds; ++round) {
    const double start = now_ns();
    for (int i = 0; i < kCalls; ++i) body();
    found = std::min(found, (now_ns() - start) / kCalls);
  }
  return found;
}

// The object lies as far above the function that looks as in a known jaxlib.
template <typename Body>
__attribute__((noinline)) auto below_executor(Body body) {
  volatile std::uintptr_t between[24] = {};
  between[0] = 1;
  const xla::cpu::CpuCollectives::Executor executor;
  asm volatile("" ::"r"(&executor) : "memory");
  return body();
}

__attribute__((noinline)) Origin look() { return origin_of_call(__builtin_frame_address(0)); }

void parts(int rounds) {
  RecorderOptions options;
  Recorder recorder(options);
  recorder.set_devices({0});
  Call call;
  std::uint32_t sequence = 0;
  const double entry = least(rounds, [&] {
    call.entered = Clock::time_point(Clock::duration(1));
    const Record record = Recorder::begin(recorder.ring(0), call, 1, sequence++, 0);
    Recorder::finish(record, RecordEntry::kDone);
  });
  Origin origin;
  const double looked = below_executor([&] { return least(rounds, [&] { origin = look(); }); });
  const double clock = least(rounds, [] { (void)now_ns(); });
  std::printf("one entry %.1f ns, one scan %.1f ns (%s), one reading of the clock %.1f ns\n", entry,
              looked, origin.execution == 77 ? "found" : "not found", clock);
}

struct Side {
  std::unique_ptr<Job> job;
  std::unique_ptr<Communicator> end;

  Side(int process, int arena, bool recorded) {
    JobOptions options;
    options.process = process;
    options.arena_fd = arena;
    options.nonce = kNonce;
    options.timeout_seconds = 60;
    options.cores = 1;
    options.labels = {"process 0", "process 1"};
    options.recorder.enabled = recorded;
    job = std::make_unique<Job>(std::move(options));
    job->set_devices({0, 1}, {0, 1});
    end = std::make_unique<Communicator>(job->clique({0, 1}), process);
  }

  __attribute__((noinline)) void run(bool looks, const double& in, double& out) {
    Call call;
    call.dtype = DType::kF64;
    call.reduction = Reduction::kSum;
    call.count = 1;
    call.in = reinterpret_cast<const std::byte*>(&in);
    call.out = reinterpret_cast<std::byte*>(&out);
    call.origin = looks ? look() : Origin{77, 3, 0};
    end->run(std::move(call));
  }
};

double quantile(std::vector<double> of, double part) {
  std::ranges::sort(of);
  return of[static_cast<std::size_t>(part * static_cast<double>(of.size() - 1))];
}

void show(const std::vector<double> (&took)[kModes]) {
  for (int mode = kOff; mode < kModes; ++mode) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < took[mode].size(); ++i)
      ratios.push_back(took[mode][i] / took[kOff][i]);
    const auto& ns = took[mode];
    std::printf("%-24s least %6.1f, quartiles %6.1f %6.1f %6.1f ns; least ratio to least %.3f, ",
                kNames[mode], quantile(ns, 0), quantile(ns, 0.25), quantile(ns, 0.5),
                quantile(ns, 0.75), quantile(ns, 0) / quantile(took[kOff], 0));
    std::printf("quartiles of ratios %.3f %.3f %.3f\n", quantile(ratios, 0.25),
                quantile(ratios, 0.5), quantile(ratios, 0.75));
  }
}

void one_process(int process, const int (&arenas)[2], int rounds) {
  hold_to_core(process);
  Side sides[] = {{process, arenas[0], false}, {process, arenas[1], true}};
  std::vector<double> took[kModes];
  double in = 1, out = 0;
  below_executor([&] {
    for (int round = 0; round < rounds; ++round)
      for (int mode = kOff; mode < kModes; ++mode) {
        Side& side = sides[mode == kOff ? 0 : 1];
        side.run(false, in, out);  // brings the processes into step
        const double start = now_ns();
        for (int i = 0; i < kCalls; ++i) side.run(mode == kLooked, in, out);
        took[mode].push_back((now_ns() - start) / kCalls);
      }
  });
  if (process == 0) show(took);
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  using namespace lockstep;
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 500;
  parts(rounds);
  std::fflush(stdout);
  const int arenas[] = {Arena::create(kNonce).release(), Arena::create(kNonce).release()};
  const pid_t child = fork();
  one_process(child == 0 ? 1 : 0, arenas, rounds);
  if (child == 0) std::_Exit(0);
  waitpid(child, nullptr, 0);
}
