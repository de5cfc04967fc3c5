// Connections between processes that have no messages for each other at the start: when they are
// made, and what a process learns of another one's end before and after.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "control/network/mesh.h"
#include "harness.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::deferred_connections {

using lockstep::deferred_connections;  // the function, whose name is that of this namespace

const std::vector<int> kTwoHosts{0, 0, 0, 1, 1, 1};

Options two_hosts(Harness harness, bool encrypt = true, int connections = 1) {
  return {.harness = harness, .encrypt = encrypt, .connections = connections, .hosts = kTwoHosts};
}

Options eight_hosts(Harness harness) {
  return {.harness = harness, .hosts = {0, 1, 2, 3, 4, 5, 6, 7}};
}

std::vector<int> met(const Rank& rank) {
  std::vector<int> found;
  for (int other = 0; other < rank.size(); ++other)
    if (rank.job.host_of(other) != rank.job.host_of(rank.process()) &&
        endpoint_of(rank.job).has_met(other))
      found.push_back(other);
  return found;
}

bool is_open(const std::string& address) { return connection_error(address).empty(); }

void wait_until_closed(const std::string& address) {
  for (int tries = 0; is_open(address); ++tries) {
    CHECK(tries < 100);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

TEST(every_process_has_a_peer_on_each_neighboring_host) {
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{kTwoHosts,
                                                                     {0, 1, 2},
                                                                     {0, 1, 2, 3, 4, 5, 6, 7},
                                                                     {0, 1, 0, 1},
                                                                     {0, 0, 0, 0, 1},
                                                                     {3, 3, 0, 3, 0, 7, 9, 9, 8},
                                                                     {0, 0, 0}}) {
    std::vector<int> order;  // of the hosts
    for (const int host : hosts)
      if (std::ranges::find(order, host) == order.end()) order.push_back(host);
    const auto place = [&](std::size_t process) {
      return static_cast<unsigned>(std::ranges::find(order, hosts[process]) - order.begin());
    };
    std::vector<std::vector<bool>> deferred;
    for (int process = 0; process < static_cast<int>(hosts.size()); ++process)
      deferred.push_back(deferred_connections(hosts, 0, process));
    for (std::size_t one = 0; one < hosts.size(); ++one)
      for (std::size_t other = 0; other < hosts.size(); ++other) {
        CHECK_EQUAL(deferred[one][other], deferred[other][one]);
        bool has_peer = false;  // on the host of the other one
        for (std::size_t i = 0; i < hosts.size(); ++i)
          has_peer = has_peer || (hosts[i] == hosts[other] && !deferred[one][i]);
        CHECK_EQUAL(has_peer, std::popcount(place(one) ^ place(other)) <= 1);
        if (hosts[one] == hosts[other]) CHECK(!deferred[one][other]);
      }
  }
  CHECK(deferred_connections(kTwoHosts, 0, 1) ==
        (std::vector<bool>{false, false, false, true, false, true}));
  CHECK(deferred_connections({0, 1, 2, 3, 4}, 0, 4) ==
        (std::vector<bool>{false, true, true, true, false}));
}

// Counted: one of 1,024 hosts with four processes each.
TEST(connections_at_the_start_grow_with_the_logarithm_of_the_hosts) {
  std::vector<int> hosts;
  for (int process = 0; process < 4096; ++process) hosts.push_back(process / 4);
  const auto deferred = deferred_connections(hosts, 0, 2049);
  std::size_t at_start = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) at_start += hosts[i] != 512 && !deferred[i];
  CHECK_EQUAL(at_start, 10U);
}

TEST(connections_are_made_when_they_are_needed) {
  for (const Harness harness : kOfSeveralHosts)
    for (const bool encrypt : {true, false}) {
      SharedCount checked;
      run_healthy(one_rank_each(6), two_hosts(harness, encrypt, 3), [&](Rank& rank) {
        const auto end = rank.all();
        CHECK(met(rank) == std::vector<int>{(rank.process() + 3) % 6});
        run_permute(*end, {{0, 4}, {5, 1}}, 10, 1);
        const std::vector<std::vector<int>> wanted{{3, 4}, {4, 5}, {5}, {0}, {0, 1}, {1, 2}};
        CHECK(met(rank) == wanted[static_cast<std::size_t>(rank.process())]);
        CHECK(is_open(endpoint_of(rank.job).address()));
        // A rank that goes on connects to the others, and with the last connection a port is
        // closed.
        checked.add(1);
        eventually([&] { return checked.get() == 6; }, "the checks of the others");
        run_case(*end, {.op = Op::kAllToAll, .dtype = DType::kF32, .count = 600, .seed = 2});
        CHECK_EQUAL(met(rank).size(), 3U);
        wait_until_closed(endpoint_of(rank.job).address());
        run_case(*end, {.count = 1000, .seed = 3});
      });
    }
}

TEST(all_connect_at_the_same_time) {
  for (int round = 0; round < rounds(10, 3); ++round)
    for (const Harness harness : kOfSeveralHosts)
      run_healthy(one_rank_each(6), two_hosts(harness, round % 2 == 0, 1 + round % 2),
                  [&](Rank& rank) {
                    const auto end = rank.all();
                    std::uint32_t seed = 0;
                    run_case(*end, {.op = Op::kAllToAll, .count = 60'000, .seed = ++seed});
                    run_permute(*end, {{0, 5}, {5, 0}, {1, 3}, {3, 1}}, 1000, ++seed);
                  });
}

// Its peer on the other host has ended as well: no process there is connected to it.
TEST(a_process_that_was_killed_before_it_was_needed) {
  const auto outcomes = run_job(one_rank_each(6), two_hosts(Harness::kForkedHosts), [](Rank& rank) {
    const auto end = all_started(rank);
    if (rank.process() == 2) return;
    eventually([&] { return rank.job.has_left(2)->load() != 0; }, "the end of the peer");
    if (rank.process() == 5) kill(getpid(), SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    run_permute(*end, {{5, 0}, {1, 3}}, 10, 1);
  });
  CHECK_EQUAL(outcomes[2].error, "");
  CHECK_EQUAL(outcomes[5].error, "killed");
  CHECK_CONTAINS(outcomes[0].error, "process 5");
}

TEST(a_program_that_has_ended_before_it_was_needed) {
  for (const bool sends : {true, false})
    for (const Harness harness : kOfSeveralHosts) {
      const auto outcomes = run_job(one_rank_each(6), two_hosts(harness), [&](Rank& rank) {
        const auto end = all_started(rank);
        if (rank.process() == 5) return rank.job.leave(Recorder::kEnded);
        if (rank.job.host_of(rank.process()) == 1) return;
        eventually([&] { return rank.job.has_left(5)->load() != 0; }, "the end of process 5");
        if (rank.process() != 0) return;
        if (sends) return run_permute(*end, {{0, 5}}, 10, 1);  // it needs nothing
        run_permute(*end, {{5, 0}}, 10, 1);
      });
      if (sends)
        CHECK_EQUAL(outcomes[0].error, "");
      else
        CHECK_CONTAINS(outcomes[0].error, "waits for process 5, whose program has ended");
      for (const std::size_t rank : {1, 2, 3, 4, 5}) CHECK_EQUAL(outcomes[rank].error, "");
    }
}

// The rank that waits only receives. It has connected before it began to wait.
TEST(a_process_that_is_killed_while_another_one_waits) {
  const auto outcomes = run_job(one_rank_each(6), two_hosts(Harness::kForkedHosts), [](Rank& rank) {
    const auto end = all_started(rank);
    if (rank.process() == 2) return;
    if (rank.process() == 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      kill(getpid(), SIGKILL);
    }
    run_permute(*end, {{5, 0}}, 10, 1);
  });
  CHECK_CONTAINS(outcomes[0].error, "process 5");
}

TEST(control_messages_make_connections) {
  run_healthy(one_rank_each(6), two_hosts(Harness::kForkedHosts), [](Rank& rank) {
    const auto end = rank.all();
    Endpoint& endpoint = endpoint_of(rank.job);
    const Bytes text = bytes_of("are you there");
    if (rank.process() == 2)
      for (const int other : {3, 4, 1, 99}) endpoint.connect(other);
    if (rank.process() == 2) CHECK(endpoint.send_control(3, text, 20));
    if (rank.process() == 0) CHECK(endpoint.send_control(5, text, 20));
    if (rank.process() == 5) {
      const ControlMessage message = endpoint.next_control(20);
      CHECK_EQUAL(message.process, 0);
      CHECK(endpoint.send_control(0, message.bytes, 20));
    }
    if (rank.process() == 0) CHECK_EQUAL(endpoint.next_control(20).process, 5);
    run_case(*end, {.count = 10, .seed = 1});
  });
}

// The message is given up at its deadline, the connection is not.
TEST(a_control_message_that_is_late) {
  for (int round = 0; round < rounds(10, 3); ++round)
    run_healthy(one_rank_each(6), two_hosts(Harness::kForkedHosts, true, 3), [](Rank& rank) {
      const auto end = rank.all();
      const int other = (rank.process() + 4) % 6;
      if (rank.job.host_of(other) != rank.job.host_of(rank.process()))
        endpoint_of(rank.job).send_control(other, bytes_of("are you there"), 1e-5);
      run_permute(*end, {{0, 4}, {4, 0}, {5, 1}}, 1000, 1);
      run_case(*end, {.op = Op::kAllToAll, .count = 600, .seed = 2});
    });
}

// Others connect to a program while it ends: its end is announced, or known from its peer of the
// start.
TEST(a_program_that_ends_while_others_connect) {
  for (int round = 0; round < rounds(10, 3); ++round)
    run_healthy(one_rank_each(6), two_hosts(Harness::kForkedHosts), [&](Rank& rank) {
      const auto end = all_started(rank);
      if (rank.process() == 5) {
        std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
        return rank.job.leave(Recorder::kEnded);
      }
      if (rank.process() < 2)
        endpoint_of(rank.job).send_control(5, bytes_of("are you there"), 1e-5);
      eventually([&] { return rank.job.has_left(5)->load() != 0; }, "the end of process 5");
      std::this_thread::sleep_for(std::chrono::milliseconds(1000));  // longer than any grace
      CHECK(!rank.job.arena().aborted() && !endpoint_of(rank.job).is_lost(5));
    });
}

// The peer of the process that aborts has ended, and no process of its host raises.
TEST(a_failure_that_other_processes_of_the_host_pass_on) {
  SharedCount reported;
  run_job(one_rank_each(6), two_hosts(Harness::kForkedHosts), [&](Rank& rank) {
    const auto end = all_started(rank);
    if (rank.process() == 3) return;
    eventually([&] { return rank.job.has_left(3)->load() != 0; }, "the end of the peer");
    if (rank.process() == 0) rank.job.arena().abort("lockstep: no more of this.");
    if (rank.process() == 4) {
      CHECK_CONTAINS(failure_of(rank.job.arena()), "no more of this");
      reported.add(1);
    }
    eventually([&] { return reported.get() == 1; }, "the other host");
  });
}

// On eight hosts with a process each, process 0 connects to 1, 2 and 4 at the start.
TEST(hosts_that_are_no_neighbors_connect_when_they_are_needed) {
  for (const Harness harness : kOfSeveralHosts)
    run_healthy(one_rank_each(8), eight_hosts(harness), [](Rank& rank) {
      const auto end = rank.all();
      const int own = rank.process();
      std::vector<int> neighbors{own ^ 1, own ^ 2, own ^ 4};
      std::ranges::sort(neighbors);
      run_case(*end, {.count = 10, .seed = 1});
      CHECK(met(rank) == neighbors);  // an all-reduce needs no others
      run_permute(*end, {{0, 7}}, 10, 2);
      CHECK_EQUAL(met(rank).size(), own == 0 || own == 7 ? 4U : 3U);
      run_case(*end, {.op = Op::kAllToAll, .dtype = DType::kF32, .count = 60'000, .seed = 3});
      CHECK_EQUAL(met(rank).size(), 7U);
      wait_until_closed(endpoint_of(rank.job).address());
    });
}

// The neighbors notice it, and pass it on to those that are not connected to it.
TEST(a_process_that_was_killed_on_a_host_that_is_no_neighbor) {
  const auto outcomes =
      run_job(one_rank_each(8), eight_hosts(Harness::kForkedHosts), [](Rank& rank) {
        const auto end = all_started(rank);
        if (rank.process() == 7) kill(getpid(), SIGKILL);
        throw Error(failure_of(rank.job.arena()));
      });
  for (const std::size_t rank : {0, 1, 2, 3, 4, 5, 6})
    CHECK_CONTAINS(outcomes[rank].error, "process 7 has ended");
}

TEST(a_process_that_is_killed_while_a_host_waits_that_is_no_neighbor) {
  const auto outcomes =
      run_job(one_rank_each(8), eight_hosts(Harness::kForkedHosts), [](Rank& rank) {
        const auto end = all_started(rank);
        if (rank.process() != 7) return run_permute(*end, {{7, 0}}, 10, 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        kill(getpid(), SIGKILL);
      });
  CHECK_CONTAINS(outcomes[0].error, "process 7");
}

// Nothing listens there any more.
TEST(a_program_that_has_ended_on_a_host_that_is_no_neighbor) {
  for (const bool sends : {true, false}) {
    const auto outcomes =
        run_job(one_rank_each(8), eight_hosts(Harness::kForkedHosts), [&](Rank& rank) {
          const auto end = all_started(rank);
          if (rank.process() != 0) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1000));
          run_permute(*end, {sends ? Edge{0, 7} : Edge{7, 0}}, 10, 1);
        });
    CHECK_CONTAINS(outcomes[0].error, "process 7", "has ended");
    for (std::size_t rank = 1; rank < 8; ++rank) CHECK_EQUAL(outcomes[rank].error, "");
  }
}

// Whose neighbors have all ended: one that waits for it is connected to it.
TEST(a_failure_whose_neighbors_have_ended) {
  const auto outcomes =
      run_job(one_rank_each(8), eight_hosts(Harness::kForkedHosts), [](Rank& rank) {
        const auto end = all_started(rank);
        const int own = rank.process();
        if (own == 4 || own == 7 || own == 1) return;
        if (own == 2) return run_permute(*end, {{5, 2}}, 10, 1);
        if (own != 5) return;
        for (const int neighbor : {4, 7, 1})
          eventually([&] { return rank.job.has_left(neighbor)->load() != 0; }, "their end");
        std::this_thread::sleep_for(std::chrono::milliseconds(500));  // process 2 connects
        rank.job.arena().abort("lockstep: no more of this.");
      });
  CHECK_CONTAINS(outcomes[2].error, "no more of this");
}

}  // namespace lockstep::testing::deferred_connections
