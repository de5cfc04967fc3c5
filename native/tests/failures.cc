// Ranks that never come, jobs that have failed, processes that die: every waiting rank raises.
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::failures {

constexpr double kSoon = 0.5;

Case small(Op op) { return case_of(op, DType::kF32, 10, 1); }

std::string name(Op op) { return name_of(op); }

TEST(a_process_that_never_comes) {
  for (const Harness harness : kAll)
    for (const char* where : sample<const char*>({"3x2", "2x2", "4x1"}, 1))
      for (const Op op : kOps) {
        const auto outcomes =
            run_job(layout(where), {.harness = harness, .timeout_seconds = kSoon}, [&](Rank& rank) {
              const auto end = rank.all();
              if (rank.process() == 1) stay_away(rank);
              run_case(*end, small(op));  // a late rank gets the same answer
            });
        for (const Outcome& outcome : outcomes) {
          CHECK_CONTAINS(outcome.error, name(op) + " ", "waited 0.5 s", "--collective-timeout");
          // With more processes of several hosts, the one that is waited for may wait itself.
          const bool is_known = processes_of_host(harness) == 0 || layout(where).processes() == 2;
          CHECK_CONTAINS(outcome.error, is_known ? "Not arrived: process 1." : "process");
          if (!is_known && outcome.error.find("Not arrived") != std::string::npos)
            CHECK_CONTAINS(outcome.error, "Not arrived: process 1.");
        }
      }
}

// Its text alone does not say whose memory is used up.
TEST(what_fails_in_one_process_names_it) {
  for (const bool is_named : {false, true}) {
    const auto outcomes =
        run_job(layout("2x1"), {.harness = Harness::kForkedHosts}, [&](Rank& rank) {
          const auto end = rank.all();
          if (rank.process() == 1)
            throw Error(rank.job.failed(is_named ? "lockstep: cannot read process 0."
                                                 : "lockstep: no memory for messages."));
          run_case(*end, {.count = 10, .seed = 1});
        });
    for (const Outcome& outcome : outcomes) {
      CHECK_CONTAINS(outcome.error, is_named ? "lockstep: cannot read" : "lockstep: process 1");
      CHECK_CONTAINS(outcome.error, is_named ? "cannot read process 0." : ": no memory for");
    }
  }
}

// Process 1 waits for it in the middle of sending, and process 0, which has waited longest, for
// process 1.
TEST(a_process_that_waits_for_a_stopped_one_has_arrived) {
  for (const Op op : {Op::kAllGather, Op::kAllToAll}) {
    const auto outcomes = run_job(
        layout("4x1"), {.harness = Harness::kForkedHosts, .timeout_seconds = 1}, [&](Rank& rank) {
          const auto end = all_started(rank);
          if (rank.process() == 3) stop_for(std::chrono::seconds(3));
          if (rank.process() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
          Case large = small(op);
          large.count = 1 << 20;
          run_case(*end, large);
        });
    for (const Outcome& outcome : outcomes) {
      CHECK(!outcome.error.empty());
      for (const char* arrived : {"0", "1", "2"})
        CHECK(outcome.error.find(std::string("Not arrived: process ") + arrived) ==
              std::string::npos);
    }
  }
}

TEST(one_process_of_several_rounds_stops) {
  // All have sent their first message; what was a large all-reduce stays unfinished.
  const auto outcomes = run_job(
      layout("2x1"), {.harness = Harness::kForked, .timeout_seconds = kSoon}, [](Rank& rank) {
        const auto end = rank.all();
        if (rank.index == 1)
          std::thread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            kill(getpid(), SIGKILL);
          }).detach();
        for (std::uint32_t i = 0;; ++i) run_case(*end, {.count = 400'000, .seed = i});
      });
  CHECK_CONTAINS(outcomes[0].error, "all-reduce (sum) of 400000 x f32", "waited 0.5 s",
                 "process 1");
  CHECK_EQUAL(outcomes[1].error, "killed");
}

TEST(a_killed_process) {
  for (const char* where : {"2x1", "2x2", "3x2"})
    for (const bool permute : {false, true}) {
      const auto outcomes = run_job(
          layout(where), {.harness = Harness::kForked, .timeout_seconds = kSoon}, [&](Rank& rank) {
            const auto end = rank.all();
            for (std::uint32_t i = 0; i < 1000; ++i) {
              if (i == 20 && rank.index == rank.size() - 1) kill(getpid(), SIGKILL);
              permute ? run_permute(*end, ring(rank.size()), 3000, i)
                      : (void)run_case(*end, {.count = 10});
            }
          });
      const Layout& where_ = layout(where);
      const int last = where_.processes() - 1;
      for (int rank = 0; rank < where_.ranks(); ++rank) {
        const auto& error = outcomes[static_cast<std::size_t>(rank)].error;
        if (where_.process_of[static_cast<std::size_t>(rank)] == last)
          CHECK_EQUAL(error, "killed");
        else
          CHECK_CONTAINS(error, permute ? "collective-permute" : "all-reduce", "Not arrived");
      }
    }
}

TEST(a_device_that_never_comes) {
  for (const Harness harness : kAll)
    for (const char* where : {"1x4", "2x4"}) {
      const auto outcomes =
          run_job(layout(where), {.harness = harness, .timeout_seconds = kSoon}, [](Rank& rank) {
            const auto end = rank.all();
            if (rank.index == 2) return stay_away(rank);
            run_case(*end, small(Op::kAllReduce));
          });
      for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
        if (rank != 2)
          CHECK_CONTAINS(outcomes[rank].error, "all-reduce", "waited 0.5 s", "process 0");
      // Within the process they know which device it was.
      if (outcomes.size() == 4)
        CHECK_CONTAINS(outcomes[0].error, "of its own process: 2 did not call it");
    }
}

// While a silent watchdog may still add to the text of the deadline, which takes it a second.
TEST(a_device_that_comes_when_another_has_given_up) {
  const Layout three{"1x3", {0, 0, 0}};
  const auto outcomes = run_job(three, {.timeout_seconds = kSoon}, [](Rank& rank) {
    const auto end = rank.all();
    rank.job.set_watched(true);
    if (rank.index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    if (rank.index == 2) return stay_away(rank);
    run_case(*end, small(Op::kAllReduce));
  });
  for (const std::size_t rank : {0, 1})
    CHECK_CONTAINS(outcomes[rank].error, "waited 0.5 s", "of its own process: ");
}

TEST(a_permute_whose_other_end_never_comes) {
  for (const Harness harness : kAll)
    for (const bool sends : {false, true}) {
      const auto outcomes =
          run_job(layout("2x1"), {.harness = harness, .timeout_seconds = kSoon}, [&](Rank& rank) {
            const auto end = rank.all();
            if (rank.index == 0) return stay_away(rank);
            Buffer data(8 << 20);  // more than the slots of a ring
            end->wait(sends ? end->send(0, data.data(), data.bytes())
                            : end->receive(0, data.data(), data.bytes()));
          });
      CHECK_EQUAL(outcomes[0].error, "");
      CHECK_CONTAINS(outcomes[1].error, "collective-permute of 8388608 bytes",
                     "device 2048 of process 1", "waited 0.5 s", sends ? "to receive" : "to send",
                     "Not arrived: device 0 of process 0");
    }
}

// XLA may hold several requests when the first wait fails, and frees their buffers.
TEST(requests_left_over_after_a_failure) {
  for (const char* where : {"2x1", "1x4"}) {
    const auto outcomes = run_job(layout(where), {.timeout_seconds = kSoon}, [](Rank& rank) {
      const auto end = rank.all();
      if (rank.index != 0) return stay_away(rank);
      Buffer data(400'000);
      Request* first = end->send(1, data.data(), data.bytes());
      Request* second = end->receive(1, data.data(), data.bytes());
      CHECK_CONTAINS(ERROR_OF(end->wait(first)), "to receive");
      end->wait(second);
    });
    CHECK_CONTAINS(outcomes[0].error, "collective-permute", "waited 0.5 s");
  }
}

// A send that was not waited for must not be received from freed memory.
TEST(a_communicator_with_an_unfinished_send_goes_away) {
  const auto outcomes = run_job(layout("1x4"), {.timeout_seconds = kSoon}, [](Rank& rank) {
    if (rank.index == 0) {
      Buffer data = message(1, 0, 1000);
      rank.all()->send(1, data.data(), data.bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } else if (rank.index == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      run_permute(*rank.all(), {{0, 1}}, 1000, 1);
    }
  });
  CHECK_CONTAINS(outcomes[1].error, "waited 0.5 s", "Not arrived: device 0 of process 0");
}

TEST(abort_reaches_a_rank_that_sleeps_without_a_deadline) {
  for (const Harness harness : kAll)
    for (const char* where : {"2x1", "1x4"})
      for (const bool permute : {false, true}) {
        const auto outcomes =
            run_job(layout(where), {.harness = harness, .timeout_seconds = 0}, [&](Rank& rank) {
              const auto end = rank.all();
              if (rank.index == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                rank.job.arena().abort("lockstep: the test ends this job.");
              } else if (permute) {
                Buffer data(10);
                end->wait(end->receive(0, data.data(), data.bytes()));
              } else {
                run_case(*end, {.count = 10});
              }
            });
        for (std::size_t rank = 1; rank < outcomes.size(); ++rank)
          CHECK_EQUAL(outcomes[rank].error, "lockstep: the test ends this job.");
      }
}

// Every call of every rank fails at once, in whatever order the ranks come and go.
TEST(a_failed_job_never_hangs) {
  for (const char* where : {"1x4", "2x2"})
    for (int repeat = 0; repeat < 5; ++repeat)
      run_healthy(layout(where), {.timeout_seconds = 0}, [&](Rank& rank) {
        const auto end = rank.all();
        float value = 1;
        const Call call = call_of({.count = 1}, &value, &value);
        if (rank.index == 0) rank.job.arena().abort("lockstep: the test ends this job.");
        if (rank.index == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        for (int i = 0; i < 3000; ++i)
          CHECK_CONTAINS(ERROR_OF(end->run(call)), "the test ends this job");
      });
}

// A leader that meets the failure while its siblings are about to give up, after a round that
// was not finished: a text that is never completed keeps the leader busy for a while.
TEST(a_round_after_an_abandoned_one) {
  const Layout pair{"1x2", {0, 0}};
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::barrier together(2);
    const auto body = [&](Rank& rank) {
      const auto end = rank.all();
      rank.job.arena().header().abort_state.store(1);
      if (rank.index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int round = 0; round < 2; ++round) {
        CHECK_CONTAINS(ERROR_OF(run_case(*end, {.count = 1})), "another process failed");
        together.arrive_and_wait();
      }
    };
    for (const Outcome& outcome : run_job(pair, {.timeout_seconds = 0}, body))
      CHECK_EQUAL(outcome.error, "");
  }
}

TEST(a_group_is_made_after_the_job_has_failed) {
  run_healthy(layout("2x1"), {}, [](Rank& rank) {
    rank.job.arena().abort("lockstep: the test ends this job.");
    CHECK_CONTAINS(ERROR_OF({
                     const auto end = rank.all();
                     run_case(*end, {.count = 10});
                   }),
                   "the test ends this job");
  });
}

TEST(a_limit_beyond_all_clocks_is_no_limit) {
  run_healthy(layout("2x2"), {.timeout_seconds = 1e300}, [](Rank& rank) {
    const auto end = rank.all();
    if (rank.index == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    run_case(*end, {.count = 10});
  });
}

}  // namespace lockstep::testing::failures
