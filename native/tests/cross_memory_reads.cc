// Large messages read straight from the memory of the other process, and through shared memory
// where that is not possible. As threads the processes of a job are one process, which copies by
// itself; forked ones read one another.
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::cross_memory_reads {

using Piece = MemoryPiece;

constexpr std::size_t kShown = 4096;  // bytes that one process shows another

// From one byte on, whatever would be faster. Permutes start at 64 times that.
Options always(Harness harness) { return {.harness = harness, .single_copy_from = 1}; }

// The second permute of a pair is the first whose sender knows that it can be read.
void mixed_program(Communicator& end) {
  for (std::uint32_t i = 0; i < 2; ++i)
    for (const std::size_t count : {0, 1, 33, 5000, 70'001}) {
      run_case(end, {Op::kAllToAll, DType::kF32, Reduction::kNone, count, i});
      run_case(end, {.count = count % 100, .seed = i});
      run_permute(end, ring(end.size()), count * 3 + 1, i);
    }
}

TEST(on_all_layouts) {
  for (const Harness harness : kBoth)
    for (const Layout& layout : all_layouts())
      run_healthy(layout, always(harness), [](Rank& rank) {
        mixed_program(*rank.all());
        Clique& clique = rank.job.clique(rank.layout.devices());
        if (clique.groups().size() > 1) CHECK(clique.single_copy().value());
      });
}

TEST(switched_off_everywhere) {
  for (const Harness harness : kBoth)
    for (const char* name : {"2x1", "3+1"}) {
      Options options = always(harness);
      options.single_copy = false;
      run_healthy(layout(name), options, [](Rank& rank) {
        mixed_program(*rank.all());
        for (int process = 0; process < rank.layout.processes(); ++process)
          CHECK(!rank.job.transport(process).can_read(process));
      });
    }
}

// One that cannot be read, by its own choice here, keeps all others to shared memory.
TEST(switched_off_in_one_process) {
  for (const Harness harness : kBoth)
    for (const char* name : {"2x1", "2x2", "4x1"}) {
      Options options = always(harness);
      options.unreadable = 1;
      run_healthy(layout(name), options, [](Rank& rank) {
        const auto end = rank.all();
        mixed_program(*end);
        const Transport& peers = rank.job.transport(1);
        CHECK(!peers.can_read(1));
        CHECK_EQUAL(peers.can_read(0), rank.process() != 1);
        const auto& known = rank.job.clique(rank.layout.devices()).single_copy();
        CHECK(known.has_value());
        CHECK(!*known);
        run_case(*end, {.count = 1});  // no process ends before all have looked
      });
    }
}

// The receiver of a first message tells that it can read the sender; the sender knows it for sure
// once they have met after that.
void offer_from_now_on(Communicator& end) {
  run_permute(end, ring(end.size()), 1000, 1);
  run_case(end, {.count = 1});
}

// What process 1 shows process 0 in the tests below; the job's memory carries the address.
std::atomic<std::uint64_t>& shown(Rank& rank) {
  return rank.job.arena().header().directory.back().offset;
}

void wait_until_shown(Rank& rank) {
  eventually([&] { return shown(rank).load() != 0; }, "an address");
}

TEST(many_pieces_and_large_ones) {
  run_healthy(layout("2x1"), {.harness = Harness::kForked}, [](Rank& rank) {
    constexpr std::size_t kBytes = (70 << 20) + 5;  // more than one system call takes
    Buffer data = message(3, 1, rank.index == 1 ? kBytes : 1);
    if (rank.index == 1) {
      shown(rank).store(reinterpret_cast<std::uint64_t>(data.data()));
    } else {
      wait_until_shown(rank);
      const std::uint64_t from = shown(rank).load();
      CHECK(rank.job.transport(1).can_read(1));
      Buffer expected = message(3, 1, kBytes), whole(kBytes), parts(1000 * 7);
      const Piece all{from, whole.data(), kBytes};
      rank.job.transport(1).read(1, {&all, 1});
      CHECK(std::equal(whole.data(), whole.data() + kBytes, expected.data()));
      std::vector<Piece> pieces;
      for (std::size_t i = 0; i < 1000; ++i)
        pieces.push_back({from + i * 11, parts.data() + i * 7, 7});
      rank.job.transport(1).read(1, pieces);
      for (std::size_t i = 0; i < 1000; ++i)
        CHECK(std::equal(pieces[i].to, pieces[i].to + 7, expected.data() + i * 11));
      whole.check_guards();
      parts.check_guards();
    }
    run_case(*rank.all(), {.count = 1});  // process 1 stays until it has been read
  });
}

// The peer is killed at some moment of a sequence of large messages: its reader receives an error,
// from the system or from the deadline, and takes no harm.
TEST(the_peer_dies_while_it_is_read) {
  for (const bool permute : {false, true})
    for (int moment = 0; moment < 4; ++moment) {
      Options options = always(Harness::kForked);
      options.timeout_seconds = 0.5;
      const auto outcomes = run_job(layout("2x1"), options, [&](Rank& rank) {
        const auto end = rank.all();
        if (rank.index == 1)
          std::thread([moment] {
            std::this_thread::sleep_for(std::chrono::microseconds(150'000 + 700 * moment));
            kill(getpid(), SIGKILL);
          }).detach();
        for (std::uint32_t i = 0;; ++i)
          permute
              ? run_permute(*end, ring(2), 8 << 20, i)
              : (void)run_case(*end, {Op::kAllToAll, DType::kF32, Reduction::kNone, 1 << 20, i});
      });
      CHECK_EQUAL(outcomes[1].error, "killed");
      CHECK_CONTAINS(outcomes[0].error, "process 1");
    }
}

// What process 0 raises that reads the bytes which process 1 has there, after `before`.
std::string error_of_reading(const void* from, const std::function<void(Rank&)>& before) {
  const auto outcomes = run_job(layout("2x1"), {.harness = Harness::kForked}, [&](Rank& rank) {
    if (rank.index == 1) {
      shown(rank).store(reinterpret_cast<std::uint64_t>(from));
      return stay_away(rank);
    }
    wait_until_shown(rank);
    before(rank);
    Buffer out(kShown);
    const Piece piece{shown(rank).load(), out.data(), out.bytes()};
    const std::string error = ERROR_OF(rank.job.transport(1).read(1, {&piece, 1}));
    out.check_guards();
    rank.job.arena().abort(error);
    throw Error(error);
  });
  return outcomes[0].error;
}

TEST(the_peer_is_dead_before_it_is_read) {
  static std::byte data[kShown];
  const std::string error = error_of_reading(data, [](Rank& rank) {
    rank.job.arena().abort("lockstep: the test ends process 1.");
    while (rank.job.transport(1).can_read(1)) std::this_thread::yield();
    rank.job.arena().header().abort_state.store(0);
  });
  CHECK_CONTAINS(error, "could not read the memory of process 1", "it has ended",
                 "LOCKSTEP_SINGLE_COPY=0");
}

TEST(a_buffer_that_is_gone) {
  // The page is not given back: under a sanitizer another mapping would soon be at its place.
  void* page = mmap(nullptr, kShown, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_CONTAINS(error_of_reading(page, [](Rank&) {}), "could not read the memory of process 1",
                 "its buffer is not there any more");
}

// A process id that now belongs to another process: the word there is not the one that was told.
TEST(another_process_has_the_id) {
  static std::byte data[kShown];
  const std::string error = error_of_reading(data, [](Rank& rank) {
    const Transport& peers = rank.job.transport(1);
    CHECK(peers.can_read(1));
    rank.job.arena().header().processes[1].word.fetch_add(1);
    CHECK(!peers.can_read(1));
  });
  CHECK_CONTAINS(error, "could not read the memory of process 1", "it has ended");
}

// What is read after the job has failed may be the rubbish of a process that has left.
TEST(nothing_read_from_a_failed_job_is_believed) {
  for (const Harness harness : kBoth)
    run_healthy(layout("2x1"), {.harness = harness}, [](Rank& rank) {
      std::byte data[100] = {}, out[100];
      const auto end = rank.all();
      run_case(*end, {.count = 1});
      rank.job.arena().abort("lockstep: the test ends this job.");
      const Piece own{reinterpret_cast<std::uint64_t>(data), out, sizeof(out)};
      CHECK_CONTAINS(ERROR_OF(rank.job.transport(rank.process()).read(rank.process(), {&own, 1})),
                     "the test ends this job");
    });
}

// The receiver never comes; the sender must not leave while its address may still be read.
TEST(a_send_by_address_that_is_not_received) {
  for (const Harness harness : kBoth) {
    Options options = always(harness);
    options.timeout_seconds = 0.5;
    const auto outcomes = run_job(layout("2x1"), options, [](Rank& rank) {
      const auto end = rank.all();
      offer_from_now_on(*end);
      if (rank.index == 1) return stay_away(rank);
      Buffer data(1000);
      end->wait(end->send(1, data.data(), data.bytes()));
    });
    CHECK_CONTAINS(outcomes[0].error, "collective-permute of 1000 bytes", "waited 0.5 s",
                   "Not arrived: device 2048 of process 1");
    CHECK_EQUAL(outcomes[1].error, "");
  }
}

TEST(a_communicator_with_an_unread_address_goes_away) {
  for (const Harness harness : kBoth) {
    const auto outcomes = run_job(layout("2x1"), always(harness), [](Rank& rank) {
      const auto end = rank.all();
      offer_from_now_on(*end);
      Buffer data(1000);
      if (rank.index == 0) {
        end->send(1, data.data(), data.bytes());
        return;
      }
      stay_away(rank);
      end->wait(end->receive(0, data.data(), data.bytes()));
    });
    CHECK_EQUAL(outcomes[0].error, "");
    CHECK_CONTAINS(outcomes[1].error, "rank 0 left before rank 1 had its message");
  }
}

TEST(lengths_that_differ) {
  for (const Harness harness : kBoth) {
    const auto permutes = run_job(layout("2x1"), always(harness), [](Rank& rank) {
      const auto end = rank.all();
      offer_from_now_on(*end);
      Buffer data(2000);
      const std::string error = ERROR_OF(end->wait(
          rank.index == 0 ? end->send(1, data.data(), 1000) : end->receive(0, data.data(), 2000)));
      data.check_guards();
      throw Error(error);
    });
    for (const Outcome& outcome : permutes)
      CHECK_CONTAINS(outcome.error, "process 0 sends 1000 bytes", "process 1 expects 2000");
    const auto blocks = run_job(layout("2x1"), always(harness), [](Rank& rank) {
      const auto end = rank.all();
      run_case(*end, {Op::kAllToAll, DType::kF32, Reduction::kNone, 100, 1});
      const std::size_t count = rank.index == 0 ? 100 : 200;
      run_case(*end, {Op::kAllToAll, DType::kF32, Reduction::kNone, count, 1});
    });
    for (const Outcome& outcome : blocks)
      CHECK_CONTAINS(outcome.error, "all-to-all of 400 x byte", "all-to-all of 800 x byte");
  }
}

}  // namespace lockstep::testing::cross_memory_reads
