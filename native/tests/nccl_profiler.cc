// The profiler plug-in under the threads that NCCL calls it from: those that dispatch, and its own
// that see kernels begin and end. tests/nccl/test_profiler.py has its behaviour.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "nccl/abi.h"
#include "recorder/recorder.h"

extern "C" {
extern lockstep::nccl::Profiler5 ncclProfiler_v5;
int lockstep_nccl_start(const char* path, int process, int processes, int attempt, const char* host,
                        const char* label, int count, const int* ids, std::uint32_t (*site)());
}

namespace lockstep::testing::nccl_profiler {

using nccl::Event5;

constexpr int kCommunicators = 3, kCalls = 400;

void* start(void* context, std::uint64_t type, void* parent, const Event5& like = {}) {
  Event5 event = like;
  event.type = type;
  event.parent = parent;
  void* handle = nullptr;
  CHECK_EQUAL(ncclProfiler_v5.start(context, &handle, &event), 0);
  return handle;
}

// The tasks of one communicator, from the thread that dispatches to that which sees kernels.
class Queue {
 public:
  void push(void* task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(task);
  }
  void* pop() {
    std::lock_guard lock(mutex_);
    if (tasks_.empty()) return nullptr;
    void* task = tasks_.front();
    tasks_.pop_front();
    return task;
  }

 private:
  std::mutex mutex_;
  std::deque<void*> tasks_;
};

void dispatch(void* context, Queue& queue) {
  Event5 call{}, task{};
  call.call = {"AllReduce", 8, "ncclFloat32", 0, nullptr, false};
  task.task.function = "AllReduce";
  task.task.dtype = "ncclFloat32";
  task.task.channels = 2;
  for (int i = 0; i < kCalls; ++i) {
    void* group = start(context, nccl::kGroupCall, nullptr);
    void* called = start(context, nccl::kCall, group, call);
    ncclProfiler_v5.stop(called);
    ncclProfiler_v5.record_state(group, nccl::kGroupEnds, nullptr);
    void* launched = start(context, nccl::kTask, called, task);
    ncclProfiler_v5.stop(launched);
    ncclProfiler_v5.stop(group);
    queue.push(launched);
  }
}

void run_kernels(void* context, Queue& queue) {
  for (int ended = 0; ended < kCalls;) {
    void* task = queue.pop();
    if (task == nullptr) {
      std::this_thread::yield();
      continue;
    }
    void* channels[] = {start(context, nccl::kKernel, task), start(context, nccl::kKernel, task)};
    for (void* channel : channels) ncclProfiler_v5.stop(channel);
    ++ended;
  }
}

TEST(threads_that_dispatch_and_threads_that_see_kernels) {
  const int device = 0;
  const int fd = lockstep_nccl_start(nullptr, 0, 2, 0, "a", "process 0", 1, &device, nullptr);
  CHECK(fd >= 0);
  std::vector<void*> contexts(kCommunicators);
  std::vector<Queue> queues(kCommunicators);
  for (int k = 0; k < kCommunicators; ++k) {
    int mask = 0;
    ncclProfiler_v5.init(&contexts[k], 100 + k, &mask, nullptr, 1, 2, 0, nullptr);
    CHECK(mask != 0);
  }
  in_threads(2 * kCommunicators, [&](std::size_t i) {
    const std::size_t k = i / 2;
    i % 2 == 0 ? dispatch(contexts[k], queues[k]) : run_kernels(contexts[k], queues[k]);
  });
  for (void* context : contexts) ncclProfiler_v5.finalize(context);

  const auto size = static_cast<std::size_t>(lseek(fd, 0, SEEK_END));
  auto* memory = static_cast<std::byte*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0));
  std::uint64_t written = 0;
  constexpr std::size_t kRing = 4096 + 65536;
  std::memcpy(&written, memory + kRing, sizeof(written));
  CHECK_EQUAL(written, std::uint64_t{kCommunicators * kCalls});
  for (std::size_t i = 0; i < Recorder::kEntries; ++i) {
    const auto* entry =
        reinterpret_cast<const RecordEntry*>(memory + kRing + 64 + i * sizeof(RecordEntry));
    CHECK_EQUAL(int{entry->state.load()}, int{RecordEntry::kDone});
  }
  munmap(memory, size);
}

}  // namespace lockstep::testing::nccl_profiler
