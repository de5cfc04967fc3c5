// Large messages whose stripes go over several connections.
#include "transport/tcp/stripes.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "hosts.h"
#include "model.h"
#include "transport/tcp/channels.h"
#include "transport/tcp/sender_threads.h"

namespace lockstep::testing {
namespace {

constexpr std::size_t kPayload = std::size_t{400} << 10;
constexpr std::size_t kSlot = kSlotHeader + kPayload;
constexpr std::uint32_t kSlots = 4;
const ChannelId kChannel{7, 0, 1};

TEST(stripes_are_all_of_a_message) {
  for (const std::uint32_t connections : {1u, 2u, 3u, 4u, 16u})
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, Stripes::kLeast, 2 * Stripes::kLeast - 1,
          2 * Stripes::kLeast, std::size_t{300'001}, std::size_t{512} << 10}) {
      const Stripes stripes(kMaxSlots, bytes, connections);
      CHECK(stripes.count() >= 1 && stripes.count() <= connections);
      std::size_t at = 0;
      for (std::size_t i = 0; i < stripes.count(); ++i) {
        CHECK_EQUAL(stripes.at(i), at);
        CHECK(stripes.count() == 1 || stripes.size(i) > 0);
        at += stripes.size(i);
      }
      CHECK_EQUAL(at, bytes);
      CHECK_EQUAL(stripes.count() > 1, connections > 1 && bytes >= 2 * Stripes::kLeast);
    }
  CHECK_EQUAL(Stripes(kMaxSlots, std::size_t{512} << 10, 4).count(), 4U);
  // A process may not know the group of the first ones yet.
  CHECK_EQUAL(Stripes(kMaxSlots - 1, std::size_t{512} << 10, 4).count(), 1U);
}

// A ring on which the first messages have come and gone, in one piece each.
struct Receiver {
  static constexpr std::uint32_t kConnections = 3;
  std::vector<std::byte> slots = std::vector<std::byte>(kSlots * kSlot);
  Counter written, read;
  Channels channels{kConnections};

  Receiver() {
    channels.open(kChannel, ReceiveRing{slots.data(), kSlots, kSlot, &written, &read});
    for (std::uint32_t number = 0; number < kMaxSlots; ++number) {
      const Channels::Part whole{kChannel, number, 0, 1};
      CHECK(channels.room(whole, kSlotHeader + 1).header != nullptr);
      channels.arrived(whole);
      read.advance();
    }
  }
  static Channels::Part part(std::uint32_t message, std::uint32_t stripe) {
    return {kChannel, kMaxSlots + message, stripe, kPayload};
  }
  static std::size_t bytes(const Channels::Part& part) {
    const Stripes stripes(part.number, part.payload, kConnections);
    return (part.stripe == 0 ? kSlotHeader : 0) + stripes.size(part.stripe);
  }
  Channels::Room begin(std::uint32_t message, std::uint32_t stripe) {
    return channels.room(part(message, stripe), bytes(part(message, stripe)));
  }
  void take(std::uint32_t message, std::uint32_t stripe) {
    begin(message, stripe);
    channels.arrived(part(message, stripe));
  }
  std::uint32_t messages() const { return written.load() - kMaxSlots; }
};

TEST(a_message_is_there_when_all_of_its_stripes_are) {
  for (const std::vector<std::uint32_t>& order :
       {std::vector<std::uint32_t>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}}) {
    Receiver to;
    for (const std::uint32_t stripe : order) {
      CHECK_EQUAL(to.messages(), 0U);
      to.take(0, stripe);
    }
    CHECK_EQUAL(to.messages(), 1U);
  }
}

TEST(messages_are_there_in_their_order) {
  Receiver to;
  to.take(0, 0);
  to.take(0, 1);
  for (const std::uint32_t stripe : {0, 1, 2}) to.take(1, stripe);
  CHECK_EQUAL(to.messages(), 0U);
  to.take(0, 2);
  CHECK_EQUAL(to.messages(), 2U);
}

TEST(stripes_go_side_by_side) {
  Receiver to;
  const Channels::Room last = to.begin(0, 2), first = to.begin(0, 0), middle = to.begin(0, 1);
  const Stripes stripes(kMaxSlots, kPayload, Receiver::kConnections);
  CHECK_EQUAL(first.rest - first.header, std::ptrdiff_t{kSlotHeader});
  CHECK_EQUAL(middle.rest - first.rest, static_cast<std::ptrdiff_t>(stripes.at(1)));
  CHECK_EQUAL(last.rest - first.rest, static_cast<std::ptrdiff_t>(stripes.at(2)));
}

TEST(all_stripes_go_to_the_place_that_was_posted_or_none_does) {
  std::vector<std::byte> place(kPayload);
  Receiver to;
  to.begin(0, 1);
  to.channels.post_receive(kChannel, kMaxSlots, place);      // too late
  to.channels.post_receive(kChannel, kMaxSlots + 1, place);  // in time
  CHECK(!to.begin(0, 0).posted && !to.begin(0, 2).posted);
  for (const std::uint32_t stripe : {2, 0, 1}) {
    const Channels::Room room = to.begin(1, stripe);
    const Stripes stripes(kMaxSlots + 1, kPayload, Receiver::kConnections);
    CHECK(room.posted && room.rest == place.data() + stripes.at(stripe));
  }
  for (const std::uint32_t message : {0, 1})
    for (const std::uint32_t stripe : {0, 1, 2})
      to.channels.arrived(Receiver::part(message, stripe));
  CHECK(!to.channels.take_placed(kChannel, kMaxSlots));
  CHECK(to.channels.take_placed(kChannel, kMaxSlots + 1));
}

TEST(a_place_that_was_withdrawn_gets_no_stripe) {
  std::vector<std::byte> place(kPayload);
  Receiver to;
  to.channels.post_receive(kChannel, kMaxSlots, place);
  CHECK(to.begin(0, 1).posted);
  to.channels.withdraw(kChannel);
  Channels::PostedLock lock;
  const std::byte* const now = to.channels.posted_room(Receiver::part(0, 1), lock);
  CHECK(now < place.data() || now >= place.data() + place.size());
  CHECK(!to.begin(0, 0).posted);
}

TEST(parts_that_break_the_rules) {
  const auto error_of = [](Channels::Part part, std::ptrdiff_t more = 0) {
    Receiver to;
    to.begin(0, 0);
    to.begin(0, 1);
    const auto bytes = static_cast<std::ptrdiff_t>(Receiver::bytes(part)) + more;
    try {
      to.channels.room(part, static_cast<std::size_t>(bytes));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto part = Receiver::part;
  CHECK_EQUAL(error_of(part(0, 2)), "");
  CHECK_EQUAL(error_of(part(1, 0)), "");
  CHECK_CONTAINS(error_of(part(0, 0)), "out of turn");
  CHECK_CONTAINS(error_of(part(0, 1)), "another length");  // twice
  CHECK_CONTAINS(error_of(part(0, 2), 1), "another length");
  CHECK_CONTAINS(error_of(part(0, 2), -1), "another length");
  CHECK_CONTAINS(error_of(part(2, 0)), "out of turn");
  CHECK_CONTAINS(error_of(part(kSlots, 1)), "without room");
  CHECK_CONTAINS(error_of({kChannel, 0, 1, kPayload}), "another length");  // is not divided
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots - 1, 0, kPayload}), "out of turn");
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots, 2, kPayload - (64 << 10)}), "another length");
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots, 1, kPayload + 4096}), "too long");
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots, 1, std::size_t{1} << 40}), "too long");
  CHECK_CONTAINS(error_of({{8, 0, 1}, kMaxSlots, 1, kPayload}), "out of turn");  // not open
  Receiver to;
  CHECK_CONTAINS(ERROR_OF(to.channels.room({kChannel, kMaxSlots, 3, kPayload}, 4096)),
                 "another length");
}

// Parts that come at random, from three connections: each in order, as a connection has them.
TEST(any_order_of_connections) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Receiver to;
    std::uint32_t next[Receiver::kConnections]{};
    std::uint32_t released = 0;
    while (to.messages() < 12) {
      const std::uint32_t stripe = random() % Receiver::kConnections;
      if (random() % 4 == 0 && released < to.messages()) {
        to.read.advance();
        ++released;
      }
      if (next[stripe] == 12 || next[stripe] >= released + kSlots) continue;
      to.take(next[stripe]++, stripe);
      CHECK_EQUAL(to.messages(), *std::ranges::min_element(next));
    }
  }
}

// Messages of one process to another one, over real connections.
struct Pair {
  Two two;
  std::vector<std::byte> slots = std::vector<std::byte>(kSlots * kSlot);
  Counter written, read, released;
  std::uint32_t number = 0;

  explicit Pair(bool encrypt, int connections = 4) : two(false, encrypt, connections) {
    two.hosts[0].endpoint->channels().open({7, 0, 1}, SendRing{&released});
    two.hosts[1].endpoint->channels().open(
        {7, 0, 0}, ReceiveRing{slots.data(), kSlots, kSlot, &written, &read});
  }
  void send(std::span<const std::byte> payload) {
    alignas(64) const std::array<std::byte, kSlotHeader> header{};
    two.hosts[0].endpoint->send({7, 0, 1}, number++, {header, payload}, two.hosts[0].limits());
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

TEST(bytes_arrive_as_they_were_sent) {
  for (const bool encrypt : {true, false})
    for (const int connections : {2, 4, 16}) {
      Pair pair(encrypt, connections);
      std::mt19937 random(3);
      for (std::uint32_t i = 0; i < 60; ++i) {
        const std::size_t bytes = i % 3 == 0 ? kPayload : random() % (kPayload + 1);
        std::vector<std::byte> sent(bytes);
        for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
        pair.send(sent);
        eventually([&] { return pair.written.reached(i + 1); }, "a message");
        CHECK(std::ranges::equal(pair.payload(i, bytes), sent));
        pair.release();
      }
      CHECK(pair.two.healthy());
    }
}

TEST(all_processes_open_as_many_connections) {
  Host hosts[2];
  hosts[0].connections = 2;
  std::string errors[2];
  std::thread other(
      [&] { errors[1] = ERROR_OF(hosts[1].join(1, hosts[0].listener.address, 7, kNonce, 4)); });
  errors[0] = ERROR_OF(hosts[0].join(0, hosts[1].listener.address, 7, kNonce, 4));
  other.join();
  CHECK_CONTAINS(errors[0] + errors[1], "has refused the connection of process",
                 "connections to each process", "LOCKSTEP_CONNECTIONS");
}

// The sockets of this test that are connected, and by which end they were opened.
std::vector<int> connections_to(const std::string& address) {
  std::vector<int> found;
  for (int fd = 0; fd < 1024; ++fd)
    if (name_of_peer(fd).find("port " + address.substr(address.rfind(':') + 1)) !=
        std::string::npos)
      found.push_back(fd);
  return found;
}

TEST(a_connection_for_stripes_that_breaks_fails_the_job) {
  for (const bool encrypt : {true, false}) {
    Pair pair(encrypt, 3);
    const auto fds = connections_to(pair.two.hosts[1].listener.address);
    CHECK_EQUAL(fds.size(), 3U);
    shutdown(fds.back(), SHUT_RDWR);
    eventually([&] { return pair.two.hosts[1].arena->aborted(); }, "an error");
    CHECK_CONTAINS(pair.two.hosts[1].arena->abort_text(), "process 0 has ended",
                   "process 1 has lost its connection");
  }
}

TEST(a_process_that_leaves_is_not_lost) {
  for (const bool encrypt : {true, false}) {
    Pair pair(encrypt, 3);
    Endpoint& stays = *pair.two.hosts[1].endpoint;
    pair.two.hosts[0].endpoint.reset();
    eventually([&] { return stays.has_left(0).load() != 0; }, "word that it has left");
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    CHECK(!stays.is_lost(0) && !pair.two.hosts[1].arena->aborted());
  }
}

// Half of the stripes are in the sockets by then, and nobody takes them.
TEST(a_message_that_is_not_taken_has_a_deadline) {
  Pair pair(false, 2);
  const std::vector<std::byte> payload(kPayload);
  pair.two.hosts[1].endpoint->stop();  // reads no more
  const auto send = [&] {
    alignas(64) const std::array<std::byte, kSlotHeader> header{};
    const WaitLimits limits{&pair.two.hosts[0].arena->header().abort_state, Deadline(0.5), {}};
    for (;;)
      pair.two.hosts[0].endpoint->send({7, 0, 1}, kMaxSlots + pair.number++, {header, payload},
                                       limits);
  };
  const std::string error = ERROR_OF(send());
  CHECK_CONTAINS(error, "process 1 has not taken all of what process 0 sent");
}

TEST(many_threads_send_stripes) {
  SenderThreads senders(3);
  std::vector<std::thread> ranks;
  std::atomic<std::uint32_t> sent{0};
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&] {
      for (std::uint32_t i = 0; i < 2000; ++i) {
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
  for (std::thread& rank : ranks) rank.join();
  CHECK_EQUAL(sent.load(), 4U * 2000 * 3);
}

TEST(collectives_and_permutes) {
  for (const char* name : {"2x1", "3x2"})
    for (const Harness harness : {Harness::kHosts, Harness::kForkedHosts})
      for (const bool encrypt : {true, false})
        run_healthy(layout(name), {.harness = harness, .encrypt = encrypt, .connections = 3},
                    [](Rank& rank) {
                      const auto end = rank.all();
                      const int next = 1 % rank.size();
                      std::uint32_t seed = 0;
                      for (int round = 0; round < rounds(6, 3); ++round)
                        for (const std::size_t count : {1000, 60'000, 500'000}) {
                          for (const Op op :
                               {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll})
                            run_case(*end, {op, DType::kF32, reductions_of(op, DType::kF32)[0],
                                            count, ++seed});
                          run_permute(*end, {{0, next}, {next, 0}}, count, ++seed);
                        }
                    });
}

}  // namespace
}  // namespace lockstep::testing
