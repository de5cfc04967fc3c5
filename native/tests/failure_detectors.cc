// What the watchdog may tell when a process is missing, and what the engine says without it.
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "check.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::failure_detectors {

const std::string kWord = "lockstep: what the watchdog knows.";

struct Bell {
  const WakeUp wake_up;
  bool rung() const {
    pollfd asked{wake_up.fd(), POLLIN, 0};
    return poll(&asked, 1, 0) == 1;
  }
};
// With a watchdog, which hears the bell.
struct Watched : Bell, Impostor {
  Watched() { host.endpoint->set_watchdog(&wake_up); }
};

// Ends process 1, and returns how long it takes until the job has failed, if no watchdog says more.
Clock::duration until_aborted(Impostor& one) {
  const auto start = Clock::now();
  one.out.reset();
  eventually([&] { return one.host.arena->aborted(); }, "an error");
  CHECK(one.host.endpoint->is_lost(1));
  CHECK_CONTAINS(one.host.arena->abort_text(),
                 "process 1 has ended, or its host cannot be reached");
  return Clock::now() - start;
}

// One of some rounds takes less than the grace: others may have had no core for a while.
void check_at_once(const std::function<Clock::duration()>& round) {
  auto least = Clock::duration::max();
  for (int i = 0; i < 5 && least >= DeferredAbort::kGrace; ++i) least = std::min(least, round());
  CHECK(least < DeferredAbort::kGrace);
}

TEST(without_a_watchdog_a_loss_fails_the_job_at_once) {
  check_at_once([] {
    Impostor one;
    return until_aborted(one);
  });
}

TEST(a_loss_of_which_no_watchdog_says_more) {
  Watched one;
  CHECK(!one.rung());
  CHECK(until_aborted(one) >= DeferredAbort::kGrace);
  CHECK(one.rung());
}

TEST(a_loss_of_which_the_watchdog_says_more) {
  Watched one;
  one.out.reset();
  eventually([&] { return one.rung(); }, "the wake-up");
  CHECK(one.host.endpoint->is_lost(1));
  one.host.arena->abort(kWord);
  CHECK_EQUAL(one.host.arena->abort_text(), kWord);
}

TEST(a_watchdog_that_goes_away_is_not_waited_for) {
  check_at_once([] {
    Watched one;
    one.host.endpoint->set_watchdog(nullptr);
    const auto time = until_aborted(one);
    CHECK(!one.rung());
    return time;
  });
}

TEST(a_watchdog_that_goes_away_meanwhile_is_not_waited_for) {
  check_at_once([] {
    Watched one;
    const auto start = Clock::now();
    one.out.reset();
    eventually([&] { return one.rung(); }, "the wake-up");
    one.host.endpoint->set_watchdog(nullptr);
    eventually([&] { return one.host.arena->aborted(); }, "an error");
    return Clock::now() - start;
  });
}

// Its own watchdog has ended with its program, but others are told by it what it has seen.
TEST(a_process_that_has_left_lets_others_abort_first) {
  Watched one;
  one.host.endpoint->leave();
  one.host.endpoint->set_watchdog(nullptr);
  CHECK(until_aborted(one) >= DeferredAbort::kGrace);
  CHECK(!one.rung());
}

void leave_the_job(Impostor& one) {
  one.send({.kind = Frame::kLeave});
  one.out.reset();
  eventually([&] { return one.host.endpoint->has_left(1).load() != 0; }, "word that it left");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(!one.host.endpoint->is_lost(1) && !one.host.arena->aborted());
}

TEST(a_process_that_has_left_is_not_lost) {
  Impostor alone;  // without a watchdog a loss fails the job at once
  leave_the_job(alone);
  Watched one;
  leave_the_job(one);
  CHECK(!one.rung());
}

// Process 3 dies. Its sibling, process 2, is the one that can tell.
std::vector<Outcome> killed(bool tells) {
  return run_job(layout("4x1"), {.harness = Harness::kForkedHosts}, [&](Rank& rank) {
    const auto end = rank.all();
    rank.job.set_watched(true);
    run_case(*end, {.count = 1000, .seed = 1});
    if (rank.process() == 3) kill(getpid(), SIGKILL);
    auto watching = in_background([&] {
      if (rank.process() != 2 || !tells) return;
      eventually([&] { return rank.job.is_lost(3); }, "the loss");
      rank.job.arena().abort(kWord);
    });
    for (std::uint32_t i = 2;; ++i) run_case(*end, {.count = 1000, .seed = i});
  });
}

TEST(a_killed_process_of_which_a_watchdog_of_its_host_says_more) {
  const auto outcomes = killed(true);
  for (const std::size_t rank : {0, 1, 2}) CHECK_EQUAL(outcomes[rank].error, kWord);
}

TEST(a_killed_process_of_which_no_watchdog_says_more) {
  const auto outcomes = killed(false);
  for (const std::size_t rank : {0, 1, 2})
    CHECK_CONTAINS(outcomes[rank].error, "lockstep: process 3 ", "Its own output may tell why.");
}

// A rank that waits for a program that has ended; `answers`: its watchdog, which says more.
std::vector<Outcome> ended(Harness harness, bool permute, bool answers) {
  return run_job(layout("4x1"), {.harness = harness}, [&](Rank& rank) {
    const auto end = rank.all();
    Job& job = rank.job;
    const Watchdog watchdog(job, [&](const std::string& text) -> std::optional<Requests::Response> {
      if (!answers || text.find("process 3, whose program has ended") == std::string::npos)
        return std::nullopt;
      job.arena().abort(kWord);
      return Requests::Response::kYes;
    });
    run_case(*end, {.count = 10, .seed = 1});
    if (rank.process() == 3) return job.leave(Recorder::kEnded);
    if (permute)
      run_permute(*end, {{3, 0}, {0, 1}, {1, 2}}, 100, 1);
    else
      run_case(*end, {.count = 10, .seed = 2});
  });
}

TEST(a_program_that_has_ended_of_which_the_watchdog_says_more) {
  for (const Harness harness : kOfSeveralHosts)
    for (const bool permute : {false, true}) {
      const auto outcomes = ended(harness, permute, true);
      CHECK_EQUAL(outcomes[0].error, kWord);
      if (!permute) CHECK_EQUAL(outcomes[1].error, kWord);
      CHECK_EQUAL(outcomes[3].error, "");
    }
}

TEST(a_program_that_has_ended_and_a_watchdog_that_is_silent) {
  const auto outcomes = ended(Harness::kHosts, false, false);
  CHECK_CONTAINS(outcomes[0].error, "waits for process 3, whose program has ended");
}

}  // namespace lockstep::testing::failure_detectors
