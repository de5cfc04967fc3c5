// Large messages over several connections: between two processes, and in jobs.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "control/network/roster.h"
#include "hosts.h"
#include "model.h"
#include "transport/tcp/sender_threads.h"
#include "transport/tcp/stripe_readers.h"

namespace lockstep::testing::striped_connections {

constexpr std::size_t kPayload = std::size_t{512} << 10;
constexpr std::size_t kSlot = kSlotHeader + kPayload;
constexpr std::uint32_t kSlots = 4;
constexpr std::chrono::milliseconds kWhile{1000};  // longer than any grace

// Messages of one process to another one, over real connections.
struct Pair {
  Two two;
  std::vector<std::byte> slots = std::vector<std::byte>(kSlots * kSlot);
  Counter written, read, released;
  std::uint32_t number = 0;

  Pair(bool encrypt, int connections) : two(false, encrypt, connections) {
    two.hosts[0].endpoint->channels().open({7, 0, 1}, SendRing{&released});
    two.hosts[1].endpoint->channels().open(
        {7, 0, 0}, ReceiveRing{slots.data(), kSlots, kSlot, &written, &read});
  }
  void send(std::span<const std::byte> payload, double seconds = 20) {
    alignas(64) const std::array<std::byte, kSlotHeader> header{};
    two.hosts[0].endpoint->send({7, 0, 1}, number++, {header, payload},
                                two.hosts[0].limits(seconds));
  }
  void release() {
    read.advance();
    two.hosts[1].endpoint->release({7, 0, 0}, read.load() - 1, two.hosts[1].limits());
    eventually([&] { return released.load() == read.load(); }, "a release");
  }
  std::span<const std::byte> payload(std::uint32_t message, std::size_t bytes) const {
    return std::span(slots).subspan(message % kSlots * kSlot + kSlotHeader, bytes);
  }
};

// The sockets by which connections to that address were opened.
std::vector<int> connections_to(const std::string& address) {
  std::vector<int> found;
  for (int fd = 0; fd < 1024; ++fd)
    if (name_of_peer(fd).find("port " + address.substr(address.rfind(':') + 1)) !=
        std::string::npos)
      found.push_back(fd);
  return found;
}

TEST(bytes_arrive_as_they_were_sent) {
  const Bytes noise = random_bytes(2 * kPayload, 5);
  for (const bool encrypt : {true, false})
    for (const int connections : {2, 4, 8}) {
      Pair pair(encrypt, connections);
      std::mt19937 random(3);
      for (std::uint32_t i = 0; i < 60; ++i) {
        const std::size_t bytes = i % 3 == 0 ? kPayload : random() % (kPayload + 1);
        const auto sent = std::span(noise).subspan(random() % kPayload, bytes);
        pair.send(sent);
        eventually([&] { return pair.written.reached(i + 1); }, "a message");
        CHECK(std::memcmp(pair.payload(i, bytes).data(), sent.data(), bytes) == 0);
        pair.release();
      }
      CHECK(pair.two.healthy());
      // Each has carried its share.
      for (const int fd : connections_to(pair.two.hosts[1].listener.address)) {
        tcp_info info{};
        socklen_t size = sizeof(info);
        CHECK_EQUAL(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
        CHECK(info.tcpi_bytes_acked > 20 * Stripes::kMinStripe / 2);
      }
    }
}

TEST(all_processes_open_as_many_connections) {
  Host hosts[2];
  hosts[0].connections = 2;
  const auto errors = errors_of_joining(hosts);
  CHECK_CONTAINS(errors[0] + errors[1], "has refused the connection of process",
                 "connections to each process", "LOCKSTEP_CONNECTIONS");
}

TEST(connections_that_were_not_agreed_on) {
  const Arena arena = new_arena();
  Roster roster({true, false}, 0, 1, kNonce, kLabels, arena, true, 3);
  const auto admit = [&](std::uint32_t which, std::uint32_t count) {
    Frame greeting = greeting_of(0);
    greeting.to = 1;
    greeting.extra = Frame::connection_number(which, count);
    roster.admit(greeting);
  };
  admit(0, 3);
  admit(2, 3);
  CHECK_CONTAINS(ERROR_OF(admit(2, 3)), "has connected already");
  CHECK_CONTAINS(ERROR_OF(admit(3, 3)), "more connections than it says");
  CHECK_CONTAINS(ERROR_OF(admit(1, 4)), "is 4, and that of this process 3", "LOCKSTEP_CONNECTIONS");
  CHECK(!roster.is_complete());
  admit(1, 3);
  CHECK(roster.is_complete());
}

TEST(any_connection_that_breaks_fails_the_job) {
  for (const bool encrypt : {true, false})
    for (std::size_t which = 0; which < 3; ++which) {
      Pair pair(encrypt, 3);
      const auto fds = connections_to(pair.two.hosts[1].listener.address);
      CHECK_EQUAL(fds.size(), 3U);
      shutdown(fds[which], SHUT_RDWR);
      CHECK_CONTAINS(failure_of(*pair.two.hosts[1].arena), "process 0 has ended",
                     "process 1 has lost its connection");
    }
}

TEST(a_process_that_leaves_is_not_lost) {
  for (const bool encrypt : {true, false}) {
    Pair pair(encrypt, 3);
    Endpoint& stays = *pair.two.hosts[1].endpoint;
    pair.two.hosts[0].endpoint.reset();
    eventually([&] { return stays.has_left(0).load() != 0; }, "word that it has left");
    std::this_thread::sleep_for(kWhile);
    CHECK(!stays.is_lost(0) && !pair.two.hosts[1].arena->aborted());
  }
}

// One connection may be slower than another: what it carries has been sent before the end.
TEST(a_process_has_left_when_all_of_its_connections_say_so) {
  Impostor one(1, 0, false, 2);
  Endpoint& stays = *one.host.endpoint;
  const auto is_well = [&] { return !stays.is_lost(1) && !one.host.arena->aborted(); };
  one.send({.kind = Frame::kLeave});
  one.out.reset();
  std::this_thread::sleep_for(kWhile);
  CHECK(is_well() && stays.has_left(1).load() == 0);
  one.further[0]->send({.kind = Frame::kLeave});
  eventually([&] { return stays.has_left(1).load() != 0; }, "word that it has left");
  one.further[0].reset();
  std::this_thread::sleep_for(kWhile);
  CHECK(is_well());
}

TEST(a_further_connection_that_ends_without_that_word) {
  Impostor one(1, 0, false, 2);
  one.send({.kind = Frame::kLeave});
  one.further[0].reset();
  CHECK_CONTAINS(failure_of(*one.host.arena), "process 1 has ended, or its host");
}

TEST(a_further_connection_carries_nothing_else) {
  for (const auto kind : {Frame::kRelease, Frame::kAbort, Frame::kControl, Frame::kGreeting}) {
    Impostor one(1, 0, false, 2);
    one.further[0]->send({.kind = kind});
    CHECK_CONTAINS(failure_of(*one.host.arena), "process 1 has ended, or its host");
  }
}

// Half of the stripes are in the sockets by then, and no process takes them.
TEST(a_message_that_is_not_taken_has_a_deadline) {
  Pair pair(false, 2);
  const std::vector<std::byte> payload(kPayload);
  pair.two.hosts[1].endpoint->stop();  // reads no more
  const auto send = [&] {
    for (pair.number = kMaxSlots;;) pair.send(payload, 0.5);
  };
  const std::string error = ERROR_OF(send());
  CHECK_CONTAINS(error, "process 1 has not taken all of what process 0 sent");
}

TEST(too_many_files_for_the_readers) {
  struct Nothing : StripeReaders::Owner {
    void ended(int, const std::string&) override {}
    void changed(int, const std::string&) override {}
    void fail(const char*) noexcept override {}
  } owner;
  const Descriptor next(dup(0));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{static_cast<rlim_t>(next.get()) + 4, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);  // for one reader and a part of another one
  const std::string error = ERROR_OF(StripeReaders(3, owner));
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_CONTAINS(error, "lockstep: no file descriptor is left");
}

// As where the system permits no more of them.
TEST(no_sender_threads) {
  SenderThreads senders(0);
  std::vector<std::uint32_t> sent;
  senders.run(4, [&](std::uint32_t stripe) { sent.push_back(stripe); });
  CHECK(sent == (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST(many_threads_send_stripes) {
  SenderThreads senders(3);
  std::atomic<std::uint32_t> sent{0};
  const auto times = static_cast<std::uint32_t>(rounds(2000, 200));
  in_threads(4, [&](std::size_t) {
    for (std::uint32_t i = 0; i < times; ++i) {
      std::array<std::atomic<int>, 5> each{};
      const std::uint32_t stripes = 1 + i % 5;
      senders.run(stripes, [&](std::uint32_t stripe) {
        each[stripe].fetch_add(1);
        sent.fetch_add(1);
      });
      for (std::uint32_t stripe = 0; stripe < 5; ++stripe)
        CHECK_EQUAL(each[stripe].load(), stripe < stripes ? 1 : 0);
    }
  });
  CHECK_EQUAL(sent.load(), 4U * times * 3);
}

TEST(collectives_and_permutes) {
  for (const char* name : sample<const char*>({"3x2", "2x1"}, 1))
    for (const bool encrypt : {true, false})
      for (const Harness harness : sample<Harness>({Harness::kForkedHosts, Harness::kHosts}, 1))
        run_healthy(layout(name), {.harness = harness, .encrypt = encrypt, .connections = 3},
                    [](Rank& rank) {
                      const auto end = rank.all();
                      for (int round = 0; round < rounds(6, 1); ++round)
                        for (const std::size_t count : {1000, 60'000, 500'000})
                          run_all_and_permute(*end, count);
                    });
}

// Ranks that send stripes when the job fails raise what it failed with, and soon.
TEST(a_job_that_fails_while_stripes_are_sent) {
  const auto outcomes =
      run_job(layout("3x2"), {.harness = Harness::kHosts, .connections = 3}, [](Rank& rank) {
        const auto end = rank.all();
        for (std::uint32_t i = 0;; ++i) {
          if (rank.index == 0 && i == 20) rank.job.arena().abort("lockstep: no more of this.");
          if (rank.job.arena().aborted()) throw Error(rank.job.arena().abort_text());
          run_case(*end, {.count = 500'000, .seed = i});
        }
      });
  for (const Outcome& outcome : outcomes) CHECK_CONTAINS(outcome.error, "no more of this");
}

TEST(a_killed_process_with_stripes_on_their_way) {
  const auto outcomes =
      run_job(layout("4x1"), {.harness = Harness::kForkedHosts, .connections = 3}, [](Rank& rank) {
        const auto end = rank.all();
        for (std::uint32_t i = 0;; ++i) {
          if (i == 20 && rank.process() == 3) kill(getpid(), SIGKILL);
          run_case(*end, {.count = 500'000, .seed = i});
        }
      });
  for (const std::size_t rank : {0, 1, 2}) CHECK_CONTAINS(outcomes[rank].error, "process 3 ");
}

}  // namespace lockstep::testing::striped_connections
