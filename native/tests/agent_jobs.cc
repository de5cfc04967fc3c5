// Jobs with agents: how an agent counts in a job, takes leave and starts again.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/mpitrampoline/state.h"
#include "check.h"
#include "core/job.h"
#include "hosts.h"

namespace lockstep::testing::agent_jobs {

// A process, 0, and the agent of another host.
struct TwoJobs {
  Host hosts[2];
  std::unique_ptr<Job> jobs[2];

  TwoJobs() {
    const std::jthread other([&] { start(1); });
    start(0);
  }
  void start(int member) {
    Host& own = hosts[member];
    JobOptions options;
    options.process = member;
    options.arena = own.arena;
    options.nonce = kNonce;
    options.labels = kLabels;
    options.recorder.enabled = false;
    std::vector<std::string> addresses(2);
    addresses[static_cast<std::size_t>(1 - member)] = hosts[1 - member].listener.address;
    options.endpoint = own.options(addresses);
    options.endpoint.num_agents = 1;
    jobs[member] = std::make_unique<Job>(options);
  }
};

// Reads the number of processes in the recorder's file.
std::uint32_t processes_on_record(const Job& job) {
  constexpr off_t kPlace = 36;
  std::uint32_t found = 0;
  CHECK_EQUAL(pread(const_cast<Job&>(job).recorder().fd(), &found, sizeof(found), kPlace),
              static_cast<ssize_t>(sizeof(found)));
  return found;
}

TEST(a_job_counts_processes_only) {
  const TwoJobs both;
  for (const auto& job : both.jobs) {
    CHECK_EQUAL(job->num_processes(), 1);
    CHECK_EQUAL(processes_on_record(*job), 1u);
    CHECK_CONTAINS(ERROR_OF(job->set_devices({5}, {1})), "the job has 1 processes");
  }
  CHECK(!both.jobs[0]->is_agent());
  CHECK(both.jobs[1]->is_agent());
  for (const auto& host : both.hosts) CHECK_EQUAL(host.arena->header().processes[1].pid.load(), 0u);
}

TEST(a_job_loses_an_agent) {
  TwoJobs both;
  CHECK(!both.jobs[0]->is_lost(1));
  endpoint_of(*both.jobs[1]).release({1, 1, 0}, 0, both.hosts[1].limits());  // it may not
  eventually([&] { return both.jobs[0]->is_lost(1); }, "the loss");
  CHECK(!both.hosts[0].arena->aborted());
}

TEST(an_agent_takes_leave_at_once) {
  TwoJobs both;
  auto least = Clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    both.jobs[1]->leave(Recorder::kEnded);
    least = std::min(least, Clock::now() - start);
  }
  CHECK(least < std::chrono::milliseconds(200));
  eventually([&] { return both.jobs[0]->has_left(1)->load() != 0; }, "word that it left");
  CHECK(!both.jobs[0]->is_lost(1));
}

// The engine of this process becomes the agent, 1, of a job with that process.
bool start_agent(Host& process) {
  const Listener listener = listen_anywhere();
  const Descriptor arena(lockstep_create_arena(kNonce));
  auto joining = in_background([&] { process.join(0, listener.address, 7, kNonce, 20, 1); });
  Given given(1, process.listener.address, arena.get(), listener.fd.get());
  given.options.num_processes = 1;
  given.options.num_agents = 1;
  const bool started = lockstep_start(&given.options) == 0;
  joining.get();
  return started;
}

int next_control(double timeout_seconds) {
  const void* bytes;
  std::uint64_t count;
  return lockstep_next_message(timeout_seconds, &bytes, &count);
}

void start_twice() {
  Host first, second;
  CHECK(start_agent(first));
  CHECK_EQUAL(Engine::instance().job().num_processes(), 1);
  CHECK(first.endpoint->send_control(1, bytes_of("one"), kLong));
  CHECK_EQUAL(next_control(kLong), 0);
  auto waiting = in_background([] { return next_control(kLong); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(start_agent(second));
  CHECK_EQUAL(waiting.get(), -2);
  eventually([&] { return first.endpoint->has_left(1).load() != 0; }, "word that it left");
  first.endpoint->send_control(1, bytes_of("late"), 1);
  first.arena->abort("lockstep: the test ends the first job.");
  CHECK_EQUAL(next_control(0.3), -1);
  CHECK(!first.endpoint->is_lost(1));
  CHECK_EQUAL(std::string(lockstep_abort_text()), "");
  CHECK_EQUAL(lockstep_send_message(0, "two", 3, kLong), 0);
  CHECK_EQUAL(second.endpoint->next_control(kLong).process, 1);
  CHECK_EQUAL(lockstep_is_lost(0), 0);
  lockstep_leave(1);
  eventually([&] { return second.endpoint->has_left(1).load() != 0; }, "word that it left");
  CHECK(!second.arena->aborted());
}

TEST(an_agent_that_starts_again) { run_in_child(start_twice); }

}  // namespace lockstep::testing::agent_jobs
