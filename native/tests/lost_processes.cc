// Between hosts: processes that end, are killed or leave, and what the others learn of it.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "check.h"
#include "control/network/endpoint.h"
#include "harness.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::lost_processes {

TEST(a_process_whose_record_was_changed_is_not_reported_as_lost) {
  for (const unsigned char last : {0, 64}) {  // the length: of a whole record, and of none
    Impostor one;
    const unsigned char record[37] = {23, 3, 3, last, 32};
    CHECK_EQUAL(::write(one.out->fd.get(), record, sizeof(record)), ssize_t{sizeof(record)});
    CHECK_CONTAINS(failure_of(*one.host.arena), "from process 1 to process 0",
                   "changes the traffic between these hosts",
                   last == 0 ? "a record was changed on its way" : "longer than TLS allows");
    CHECK(one.host.arena->abort_text().find("cannot be reached") == std::string::npos);
  }
}

// The program ends before it can say so in a frame of its own.
TEST(a_greeting_says_that_the_program_has_ended) {
  for (const bool says : {true, false}) {
    Host host;
    const Listener listener = listen_anywhere();
    auto joining = in_background([&] { host.join(0, listener.address); });
    Peer in(listener);
    in.welcome(1);
    {
      Peer out(host.listener.address);
      Frame greeting = greeting_of(1);
      if (says) greeting.number |= Frame::kHasLeft;
      out.send(greeting);
      joining.get();
    }
    if (says) eventually([&] { return host.endpoint->has_left(1) != 0; }, "its end");
    if (!says) eventually([&] { return host.arena->aborted(); }, "an error");
    std::this_thread::sleep_for(std::chrono::milliseconds(says ? 800 : 0));  // beyond any grace
    CHECK_EQUAL(host.arena->aborted(), !says);
    CHECK_EQUAL(host.endpoint->is_lost(1), !says);
  }
}

// A program that has ended will not come: no process waits for it until the deadline.
TEST(a_program_that_has_ended_while_others_wait) {
  for (const Harness harness : kOfSeveralHosts)
    for (const bool permute : {false, true}) {
      const auto outcomes = run_job(layout("4x1"), {.harness = harness}, [&](Rank& rank) {
        const auto end = all_started(rank);
        if (rank.process() == 3) return rank.job.leave(Recorder::kEnded);
        if (permute)
          run_permute(*end, {{3, 0}, {0, 1}, {1, 2}}, 100, 1);
        else
          run_case(*end, {.count = 10, .seed = 2});
      });
      CHECK_EQUAL(outcomes[3].error, "");
      CHECK_CONTAINS(outcomes[0].error, "waits for process 3, whose program has ended");
      if (!permute) CHECK_CONTAINS(outcomes[1].error, "process 3, whose program has ended");
    }
}

// What a program has dispatched before its end is still done.
TEST(a_program_that_has_ended_before_its_collectives) {
  for (const Harness harness : kOfSeveralHosts)
    run_healthy(layout("4x1"), {.harness = harness}, [&](Rank& rank) {
      const auto end = rank.all();
      const std::jthread dispatched([&] {
        for (std::uint32_t i = 0; i < 5; ++i) {
          if (rank.process() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
          run_case(*end, {.count = 10, .seed = i});
        }
      });
      if (rank.process() != 0) {
        rank.job.finish();
        rank.job.leave(Recorder::kEnded);
      }
    });
}

// Its siblings look for themselves when the other hosts have ended.
TEST(a_killed_process_that_only_its_own_host_waits_for) {
  const auto outcomes = run_job(layout("4x1"), {.harness = Harness::kForkedHosts}, [](Rank& rank) {
    run_case(*rank.all(), {.count = 10, .seed = 1});
    if (rank.process() < 2) return;
    const auto end = rank.end({2, 3});
    eventually([&] { return rank.job.has_left(0)->load() && rank.job.has_left(1)->load(); },
               "the end of the others");
    if (rank.process() == 3) kill(getpid(), SIGKILL);
    run_case(*end, {.count = 10, .seed = 2});
  });
  CHECK_EQUAL(outcomes[0].error, "");
  CHECK_CONTAINS(outcomes[2].error, "process 3 was killed or has crashed");
}

// A worker that was forked keeps copies of the connections.
TEST(a_fork_that_outlives_its_parent) {
  const auto lost = run_job(layout("4x1"), {.harness = Harness::kForkedHosts}, [](Rank& rank) {
    const auto end = all_started(rank);
    if (rank.process() == 3) {
      if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        endpoint_of(rank.job).abandon();
        sleep(5);
        _exit(0);
      }
      kill(getpid(), SIGKILL);
    }
    run_case(*end, {.count = 10, .seed = 2});
  });
  CHECK_CONTAINS(lost[0].error, "process 3 ");
}

// The parent goes on, and so does its progress thread when the other end closes what the child
// keeps open.
TEST(a_fork_that_keeps_the_connections) {
  run_healthy(layout("4x1"), {.harness = Harness::kForkedHosts}, [](Rank& rank) {
    const auto end = all_started(rank);
    pid_t child = 0;
    if (rank.process() == 0 && (child = fork()) == 0) {
      sleep(3);
      _exit(0);
    }
    run_case(*end, {.count = 10, .seed = 2});
    if (rank.process() != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // the others have ended
    CHECK(!rank.job.arena().aborted());
    waitpid(child, nullptr, 0);
  });
}

TEST(a_long_text_travels_cut) {
  const auto outcomes = run_job(layout("2x1"), {.harness = Harness::kHosts}, [](Rank& rank) {
    const auto end = all_started(rank);
    if (rank.index == 1) return rank.job.arena().abort(std::string(5000, 'x'));
    run_case(*end, {.count = 10, .seed = 2});
  });
  CHECK_EQUAL(outcomes[0].error, std::string(kAbortText - 1, 'x'));
}

// What a rank waited for last is no reason to stop sending to another one.
TEST(a_send_goes_on_while_another_process_has_left) {
  Impostor one;  // which reads nothing
  const std::atomic<std::uint32_t> left{1};
  WaitLimits limits = one.host.limits(1);
  limits.left = &left;
  const auto start = Clock::now();
  const auto send = [&] {
    for (std::uint32_t i = 0;; ++i) one.host.endpoint->release({77, 1, 1}, i, limits);
  };
  const std::string error = ERROR_OF(send());
  CHECK_CONTAINS(error, "until the deadline");
  CHECK(Clock::now() - start >= std::chrono::seconds(1));
}

}  // namespace lockstep::testing::lost_processes
