// What a device leaves in its record, and what the members compare besides the call itself.
#include <sys/mman.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

#include "check.h"
#include "harness.h"
#include "model.h"
#include "recorder/recorder.h"

namespace lockstep::testing::recorders {

constexpr std::size_t kRings = 4096 + 65536;
constexpr std::size_t kRingHeader = 64;

// A record as a reader in another process sees it: through the file, never through the recorder.
class Reader {
 public:
  explicit Reader(Recorder& recorder) {
    size_ = static_cast<std::size_t>(lseek(recorder.fd(), 0, SEEK_END));
    memory_ = static_cast<const std::byte*>(
        mmap(nullptr, size_, PROT_READ, MAP_SHARED, recorder.fd(), 0));
  }
  ~Reader() { munmap(const_cast<std::byte*>(memory_), size_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  template <typename Value>
  Value at(std::size_t offset) const {
    Value value;
    CHECK(offset + sizeof(value) <= size_);
    std::memcpy(&value, memory_ + offset, sizeof(value));
    return value;
  }
  std::size_t ring(std::size_t index) const { return kRings + index * at<std::uint32_t>(28); }
  std::uint64_t written(std::size_t index) const { return at<std::uint64_t>(ring(index)); }
  // The offset of the entry with this number, from 1.
  std::size_t entry(std::size_t index, std::uint64_t number) const {
    const std::size_t offset =
        ring(index) + kRingHeader + (number - 1) % Recorder::kEntries * sizeof(RecordEntry);
    CHECK_EQUAL(at<std::uint64_t>(offset), number);
    return offset;
  }

 private:
  std::size_t size_;
  const std::byte* memory_;
};

Call call_of(const Case& what, std::vector<float>& in, std::vector<float>& out) {
  in.assign(what.count * 8, 1);
  out.assign(what.count * 8, 0);
  return testing::call_of(what, in.data(), out.data());
}

TEST(every_call_leaves_an_entry) {
  run_healthy(layout("2x2"), {}, [](Rank& rank) {
    const auto end = rank.all();
    std::vector<float> in, out;
    Call call = call_of({.count = 10}, in, out);
    call.origin = {77, 3, 0};
    end->run(call);
    const std::size_t index = rank.index % 2;
    Reader reader(rank.job.recorder());
    CHECK_EQUAL(reader.at<std::uint32_t>(24), 2u);  // rings
    CHECK_EQUAL(reader.written(index), 1u);
    const std::size_t entry = reader.entry(index, 1);
    CHECK_EQUAL(reader.at<std::int64_t>(entry + 16), 77);
    CHECK_EQUAL(reader.at<std::int64_t>(entry + 24), 3);
    CHECK_EQUAL(reader.at<std::uint64_t>(entry + 32), 10u);
    CHECK_EQUAL(reader.at<std::uint64_t>(entry + 40), 40u);
    CHECK_EQUAL(int{reader.at<std::uint8_t>(entry + 55)}, int{RecordEntry::kDone});
    const auto entered = reader.at<std::int64_t>(entry + 56);
    const auto arrived = reader.at<std::int64_t>(entry + 64);
    const auto done = reader.at<std::int64_t>(entry + 72);
    CHECK(0 < entered && entered <= arrived && arrived <= done);
    CHECK_EQUAL(reader.at<std::int32_t>(entry + 80), rank.index);
    // The clique area names the members.
    CHECK_EQUAL(reader.at<std::uint32_t>(4096 + 8), 4u);
    CHECK_EQUAL(reader.at<std::int32_t>(4096 + 12 + 8), kDeviceStride);
  });
}

// The one that comes last is in the middle of the order in which the others await their peers.
TEST(a_wait_for_any_peer_is_recorded_as_one) {
  run_healthy(layout("4x1"), {}, [](Rank& rank) {
    const auto end = rank.all();
    std::vector<float> in, out;
    const Call call = call_of({.count = 1}, in, out);
    end->run(call);  // all are ready
    if (rank.index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    end->run(call);
    if (rank.index == 1) return;
    Reader reader(rank.job.recorder());
    const std::size_t entry = reader.entry(0, 2);
    CHECK(reader.at<std::int64_t>(entry + 56) < reader.at<std::int64_t>(entry + 64));
  });
}

TEST(a_ring_comes_round) {
  run_healthy(layout("2x1"), {}, [](Rank& rank) {
    const auto end = rank.all();
    std::vector<float> in, out;
    const Call call = call_of({.count = 1}, in, out);
    const std::uint64_t runs = Recorder::kEntries + 5;
    for (std::uint64_t i = 0; i < runs; ++i) end->run(call);
    Reader reader(rank.job.recorder());
    CHECK_EQUAL(reader.written(0), runs);
    CHECK_EQUAL(reader.at<std::uint32_t>(reader.entry(0, runs) + 48), runs - 1);
    CHECK_EQUAL(reader.at<std::uint32_t>(reader.entry(0, 6) + 48), 5u);
  });
}

TEST(a_permute_names_its_ends) {
  run_healthy(layout("2x1"), {}, [](Rank& rank) {
    const auto end = rank.all();
    std::uint64_t sent = 7, received = 0;
    const int other = 1 - rank.index;
    auto* from = end->receive(other, reinterpret_cast<std::byte*>(&received), 8);
    auto* to = end->send(other, reinterpret_cast<const std::byte*>(&sent), 8);
    end->wait(from);
    end->wait(to);
    Reader reader(rank.job.recorder());
    CHECK_EQUAL(reader.written(0), 1u);
    const std::size_t entry = reader.entry(0, 1);
    CHECK_EQUAL(int{reader.at<std::uint8_t>(entry + 52)}, int(Op::kPermute));
    CHECK_EQUAL(int{reader.at<std::uint8_t>(entry + 55)}, int{RecordEntry::kDone});
    CHECK_EQUAL(reader.at<std::int32_t>(entry + 84), other);
    CHECK_EQUAL(reader.at<std::int32_t>(entry + 88), 1);
    CHECK_EQUAL(reader.at<std::int32_t>(entry + 92), other);
  });
}

// Says whether two programs are one, and counts how often it is asked.
struct Comparing {
  std::atomic<int> asked{0};
  const Watchdog watchdog;

  Comparing(Job& job, bool yes, bool knows_more = true)
      : watchdog(job, [this, &job, yes, knows_more](const std::string& text) {
          if (text.starts_with("programs ")) {
            ++asked;
            return yes ? Requests::Response::kYes : Requests::Response::kNo;
          }
          if (knows_more) job.arena().abort("a table of calls");
          return Requests::Response::kYes;
        }) {}
};

TEST(look_alikes_of_different_programs) {
  for (const Harness harness : kBoth)
    for (const char* where : {"1x4", "2x1", "2x2", "3x2"})
      for (const Origin odd : {Origin{78, 3, 0}, Origin{77, 4, 0}, Origin{77, 3, 9}}) {
        const auto outcomes =
            run_job(layout(where), {.harness = harness, .timeout_seconds = 20}, [&](Rank& rank) {
              const auto end = rank.all();
              const Comparing watchdog(rank.job, false, false);
              std::vector<float> in, out;
              Call call = call_of({.count = 10}, in, out);
              call.origin = rank.index == rank.size() - 1 ? odd : Origin{77, 3, 8};
              end->run(call);
            });
        for (const Outcome& outcome : outcomes)
          CHECK_CONTAINS(outcome.error, "all-reduce (sum) of 10 x f32", "look alike");
      }
}

TEST(permutes_of_different_programs) {
  for (const char* where : {"1x4", "2x1"}) {
    const auto outcomes = run_job(layout(where), {.timeout_seconds = 20}, [](Rank& rank) {
      const auto end = rank.all();
      const Comparing watchdog(rank.job, false, false);
      std::uint64_t value = 7;
      const Origin origin{77 + rank.index, 3, 0};
      if (rank.index == 0)
        end->wait(end->send(1, reinterpret_cast<const std::byte*>(&value), 8, origin));
      if (rank.index == 1)
        end->wait(end->receive(0, reinterpret_cast<std::byte*>(&value), 8, origin));
      run_case(*end, {.count = 1});  // a short message may have left the sender
    });
    for (const Outcome& outcome : outcomes)
      CHECK_CONTAINS(outcome.error, "collective-permute", "sends 8 bytes", "another program");
  }
}

TEST(an_unknown_origin_agrees_with_all) {
  for (const char* where : {"1x4", "2x2"})
    run_healthy(layout(where), {}, [](Rank& rank) {
      const auto end = rank.all();
      std::vector<float> in, out;
      Call call = call_of({.count = 10}, in, out);
      if (rank.index % 2 == 0) call.origin = {77, 3, 0};
      end->run(call);
      CHECK_EQUAL(out[9], float(rank.size()));
    });
}

TEST(a_watchdog_may_let_look_alikes_meet) {
  run_healthy(layout("2x1"), {.timeout_seconds = 20}, [](Rank& rank) {
    const auto end = rank.all();
    const Comparing watchdog(rank.job, true);
    std::vector<float> in, out;
    Call call = call_of({.count = 10}, in, out);
    for (int execution = 0; execution < 3; ++execution) {
      call.origin = {70 + 100 * rank.index + execution, 3, 0};
      end->run(call);
      CHECK_EQUAL(out[0], 2.0f);
    }
    CHECK_EQUAL(watchdog.asked.load(), 1);  // the other executions lie as far apart
  });
}

TEST(a_watchdog_may_tell_look_alikes_apart) {
  const auto outcomes = run_job(layout("2x1"), {.timeout_seconds = 20}, [](Rank& rank) {
    const auto end = rank.all();
    const Comparing watchdog(rank.job, false);
    std::vector<float> in, out;
    Call call = call_of({.count = 10}, in, out);
    call.origin = {70 + 100 * rank.index, 3, 0};
    end->run(call);
  });
  for (const Outcome& outcome : outcomes) CHECK_EQUAL(outcome.error, "a table of calls");
}

TEST(a_watchdog_describes_a_divergence) {
  const auto outcomes = run_job(layout("2x1"), {.timeout_seconds = 20}, [](Rank& rank) {
    const auto end = rank.all();
    const Comparing watchdog(rank.job, true);
    std::vector<float> in, out;
    end->run(call_of({.count = 10 + std::size_t(rank.index)}, in, out));
  });
  for (const Outcome& outcome : outcomes) CHECK_EQUAL(outcome.error, "a table of calls");
}

TEST(a_forbidden_collective_is_an_error_of_its_own_process_only) {
  run_healthy(layout("2x1"), {.timeout_seconds = 20}, [](Rank& rank) {
    const auto end = rank.all();
    if (rank.index == 0) {
      rank.job.forbid("not here");
      std::vector<float> in, out;
      CHECK_EQUAL(ERROR_OF(end->run(call_of({.count = 10}, in, out))), "not here");
      rank.job.forbid("");
    }
    run_case(*end, {.count = 10});
  });
}

TEST(an_execution_that_was_refused_stays_refused) {
  std::barrier first_was_refused(4);
  run_healthy(layout("1x4"), {.timeout_seconds = 20}, [&](Rank& rank) {
    const auto end = rank.all();
    const auto refused = [&] {
      std::vector<float> in, out;
      Call call = call_of({.count = 10}, in, out);
      call.origin = {77, 3, 0};
      return ERROR_OF(end->run(call));
    };
    // The first device comes while it is forbidden, the others after that.
    if (rank.index == 0) {
      rank.job.forbid("not here");
      CHECK_EQUAL(refused(), "not here");
      rank.job.forbid("");
    }
    first_was_refused.arrive_and_wait();
    if (rank.index != 0) CHECK_EQUAL(refused(), "not here");
    run_case(*end, {.count = 10});
  });
}

TEST(a_recorder_without_a_file_goes_on_in_memory) {
  RecorderOptions options;
  options.path = "/proc/none/recorder.bin";
  Recorder recorder(options);
  CHECK_CONTAINS(recorder.problem(), "/proc/none/recorder.bin", "No such file", "in memory only");
  recorder.set_devices({5});
  Call call;
  const Record record = Recorder::begin(recorder.ring(5), call, 1, 0, 0);
  CHECK(record.entry != nullptr);
  Recorder::finish(record, RecordEntry::kDone);
  CHECK_EQUAL(Reader(recorder).written(0), 1u);
  CHECK(recorder.ring(6) == nullptr);
  CHECK(Recorder::begin(nullptr, call, 1, 0, 0).entry == nullptr);
}

}  // namespace lockstep::testing::recorders
