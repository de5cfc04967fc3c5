// Control messages between hosts: they arrive whole, in order, and never at the job's expense.
#include "control/messages.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "api/mpitrampoline/state.h"
#include "check.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::messages {

Bytes pattern(std::size_t count, unsigned seed) {
  Bytes made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
  return made;
}

// A whole message, as its parts.
void take(ControlMessages& control, int process, const Bytes& bytes) {
  std::size_t at = 0;
  do {
    const std::size_t n = std::min(ControlMessages::kPart, bytes.size() - at);
    control.take(process, bytes.size(), at, std::span(bytes).subspan(at, n));
    at += n;
  } while (at < bytes.size());
}

TEST(both_ways_in_order) {
  Two two;
  const std::size_t sizes[] = {
      0, 1, 40, 70'000, ControlMessages::kPart, ControlMessages::kPart + 1, 3 << 20, 0, 7};
  for (unsigned from : {0u, 1u}) {
    const std::jthread sending([&] {
      for (const std::size_t size : sizes)
        two.hosts[from].endpoint->send_control(1 - static_cast<int>(from), pattern(size, from),
                                               kLong);
    });
    for (const std::size_t size : sizes) {
      const ControlMessage message = two.hosts[1 - from].endpoint->next_control(kLong);
      CHECK_EQUAL(message.process, static_cast<int>(from));
      CHECK(message.bytes == pattern(size, from));
    }
  }
  CHECK_EQUAL(two.hosts[0].endpoint->next_control(0).process, ControlMessage::kNone);
  CHECK_EQUAL(two.hosts[0].endpoint->next_control(0.01).process, ControlMessage::kNone);
  two.exchange(1);
  CHECK(two.healthy());
}

TEST(the_longest) {
  Two two;
  const Bytes longest = pattern(ControlMessages::kMaxLength, 5);
  CHECK(!two.hosts[0].endpoint->send_control(1, Bytes(ControlMessages::kMaxLength + 1), kLong));
  CHECK(two.hosts[0].endpoint->send_control(1, longest, kLong));
  CHECK(two.hosts[1].endpoint->next_control(kLong).bytes == longest);
  CHECK(two.healthy());
}

// From and to all processes of other hosts, from two threads each.
bool gossip(Job& job, const Layout& where, unsigned rounds) {
  Endpoint& endpoint = endpoint_of(job);
  int others = 0;
  for (int other = 0; other < where.processes(); ++other) others += endpoint.reaches(other);
  const auto send = [&] {
    bool sent = true;
    for (unsigned i = 0; i < rounds; ++i)
      for (int other = 0; other < where.processes(); ++other)
        if (endpoint.reaches(other))
          sent &= endpoint.send_control(
              other, pattern(i % 2 ? 100 : 600'000, static_cast<unsigned>(job.process())), kLong);
    return sent;
  };
  auto one = in_background(send), two = in_background(send);
  bool right = true;
  for (unsigned i = 0; i < 2 * rounds * static_cast<unsigned>(others); ++i) {
    const ControlMessage message = endpoint.next_control(kLong);
    right &= message.process >= 0 && endpoint.reaches(message.process) &&
             message.bytes == pattern(message.bytes.size(), static_cast<unsigned>(message.process));
  }
  return one.get() && two.get() && right;
}

TEST(beside_collectives) {
  for (const Harness harness : kOfSeveralHosts)
    run_healthy(layout("4x1"), {.harness = harness}, [&](Rank& rank) {
      const auto end = rank.all();
      auto control = in_background([&] { return gossip(rank.job, rank.layout, 4); });
      for (std::uint32_t i = 0; i < 60; ++i)
        run_case(*end, {.count = i % 3 ? 100u : 200'000u, .seed = i});
      CHECK(control.get());
      run_case(*end, {.count = 1});
    });
}

TEST(more_than_there_is_room_for) {
  ControlMessages control;
  const Bytes quarter(ControlMessages::kMaxBytes / 4);
  for (int i = 0; i < 4; ++i) take(control, i, quarter);
  take(control, 9, bytes_of("dropped"));
  CHECK_EQUAL(control.next(0).process, 0);
  take(control, 8, bytes_of("kept"));
  for (const int process : {1, 2, 3, 8, -1}) CHECK_EQUAL(control.next(0).process, process);
  // What its sender gave up, and of whom nothing follows, takes no room, and nor does what is only
  // announced.
  const auto but_one = std::span(quarter).first(ControlMessages::kMaxLength - 1);
  for (int i = 0; i < 10; ++i) control.take(0, ControlMessages::kMaxLength, 0, but_one);
  for (int i = 1; i < 4; ++i) control.take(i, ControlMessages::kMaxLength, 0, but_one);
  take(control, 9, bytes_of("dropped"));
  control.forget(1);
  take(control, 9, bytes_of("kept"));
  take(control, 0, bytes_of("another"));
  for (const int process : {9, 0, -1}) CHECK_EQUAL(control.next(0).process, process);
  for (std::size_t i = 0; i < ControlMessages::kMaxCount + 5; ++i) take(control, 5, {});
  for (std::size_t i = 0; i < ControlMessages::kMaxCount; ++i)
    CHECK_EQUAL(control.next(0).process, 5);
  CHECK_EQUAL(control.next(0).process, ControlMessage::kNone);
}

TEST(more_at_once_than_there_are_places_for) {
  ControlMessages control;
  for (std::size_t i = 0; i < ControlMessages::kMaxCount - 1; ++i) take(control, 5, {});
  for (const int process : {1, 2}) control.take(process, 2, 0, bytes_of("a"));
  for (const int process : {1, 2}) control.take(process, 2, 1, bytes_of("b"));
  for (int i = 0; i < 5; ++i) take(control, 5, {});
  std::size_t count = 0;
  while (control.next(0).process != ControlMessage::kNone) ++count;
  CHECK_EQUAL(count, ControlMessages::kMaxCount);
}

TEST(parts_that_break_the_rules) {
  const Bytes part(100);
  const auto second = [&](std::uint64_t bytes, std::size_t at) {
    ControlMessages control;
    control.take(0, 200, 0, part);
    return ERROR_OF(control.take(0, bytes, at, part));
  };
  CHECK_CONTAINS(second(200, 99), "out of turn");
  CHECK_CONTAINS(second(200, 101), "out of turn");
  CHECK_CONTAINS(second(300, 100), "out of turn");
  CHECK_CONTAINS(second(99, 0), "out of turn");
  CHECK_CONTAINS(second(std::uint64_t{1} << 60, 0), "too long");
  CHECK_CONTAINS(second(ControlMessages::kMaxLength + 1, 0), "too long");
  ControlMessages control;
  CHECK_CONTAINS(ERROR_OF(control.take(0, 200, 0, {})), "out of turn");
}

TEST(to_a_process_that_takes_none) {
  Two two;
  for (const int unknown : {0, -1, 2, 1 << 30})
    CHECK(!two.hosts[0].endpoint->send_control(unknown, bytes_of("x"), kLong));
  two.hosts[1].endpoint->end_control();
  CHECK(!two.hosts[1].endpoint->send_control(0, bytes_of("x"), kLong));
  CHECK_EQUAL(two.hosts[1].endpoint->next_control(kLong).process, ControlMessage::kOver);
  CHECK(two.healthy());
}

TEST(to_and_from_a_process_that_has_left) {
  Two two;
  Endpoint &first = *two.hosts[0].endpoint, &second = *two.hosts[1].endpoint;
  second.leave();
  eventually([&] { return first.has_left(1).load() != 0; }, "word that it left");
  CHECK(first.send_control(1, bytes_of("and?"), kLong));
  CHECK_EQUAL(second.next_control(kLong).process, 0);
  CHECK(second.send_control(0, bytes_of("nothing"), kLong));
  CHECK_EQUAL(first.next_control(kLong).process, 1);
  CHECK(!first.is_lost(1));
  CHECK(two.healthy());
}

TEST(a_wait_when_it_ends) {
  Two two;
  const auto wait = [&] { return two.hosts[0].endpoint->next_control(kLong).process; };
  auto one = in_background(wait), other = in_background(wait);
  CHECK(one.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK(two.hosts[1].endpoint->send_control(0, bytes_of("x"), kLong));
  eventually(
      [&] {
        return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready ||
               other.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      },
      "a message");
  two.hosts[0].endpoint->end_control();
  const int both = one.get() + other.get();
  CHECK_EQUAL(both, 1 + ControlMessage::kOver);
}

// One that was late is given up between two parts, or its part goes out first: the connection
// holds.
TEST(a_late_one_costs_nothing) {
  Impostor one;
  Peer& peer = *one.in[0];
  Bytes rest;
  Endpoint& endpoint = *one.host.endpoint;
  const Bytes late = pattern(ControlMessages::kMaxLength, 3);
  // Long enough to fill the buffers of both sockets, also under a sanitizer: "later" finds no room.
  CHECK(!endpoint.send_control(1, late, 1.0));
  CHECK(!endpoint.send_control(1, bytes_of("later"), 0.05));
  CHECK(!one.host.arena->aborted());
  CHECK(!endpoint.is_lost(1));
  auto again = in_background([&] {
    endpoint.release({77, 1, 1}, 5, one.host.limits());
    return endpoint.send_control(1, bytes_of("again"), kLong);
  });
  std::size_t have = 0;
  Frame frame = peer.receive(rest);
  for (; frame.kind == Frame::kControl; frame = peer.receive(rest)) {
    CHECK_EQUAL(frame.clique, late.size());
    CHECK_EQUAL(frame.number, have);
    CHECK(std::ranges::equal(rest, std::span(late).subspan(have, frame.bytes)));
    have += frame.bytes;
  }
  CHECK(have > 0 && have < late.size());
  CHECK_EQUAL(frame.kind, std::uint32_t{Frame::kRelease});
  CHECK_EQUAL(frame.clique, 77u);
  CHECK_EQUAL(peer.receive(rest).number, 0u);
  CHECK(rest == bytes_of("again"));
  CHECK(again.get());
  CHECK(!one.host.arena->aborted());
}

// A thread of Python's may be in either call when the process exits.
[[noreturn]] void exit_in_flight() {
  static auto* one = new Impostor;  // which reads nothing
  static std::atomic<int> woken{0};
  std::thread([] {
    woken += one->host.endpoint->next_control(kLong).process == ControlMessage::kOver;
  }).detach();
  std::thread([] {
    woken += !one->host.endpoint->send_control(1, Bytes(ControlMessages::kMaxLength), kLong);
  }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::exit(woken == 0 ? 0 : 1);
}

TEST(when_the_process_exits) { run_in_child(exit_in_flight); }

// Its locks may be held by threads that the child does not have.
TEST(in_a_forked_child) {
  Two two;
  auto waiting = in_background([&] { return two.hosts[0].endpoint->next_control(2); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  run_in_child([&] {
    Endpoint& endpoint = *two.hosts[0].endpoint;
    CHECK_EQUAL(endpoint.next_control(kLong).process, ControlMessage::kOver);
    endpoint.abandon();
    CHECK(!endpoint.send_control(1, bytes_of("x"), kLong));
    CHECK_EQUAL(endpoint.next_control(kLong).process, ControlMessage::kOver);
    endpoint.end_control();
  });
  CHECK_EQUAL(waiting.get().process, ControlMessage::kNone);
  two.exchange(1);
}

void exchange_through_c() {
  Host other;
  const Listener listener = listen_anywhere();
  const Descriptor arena(lockstep_create_arena(kNonce));
  std::thread joining([&] { other.join(1, listener.address); });
  const Given given(0, other.listener.address, arena.get(), listener.fd.get());
  CHECK_EQUAL(lockstep_start(&given.options), 0);
  joining.join();
  const void* bytes = nullptr;
  std::uint64_t count = 99;
  CHECK_EQUAL(lockstep_next_message(0, &bytes, &count), -1);
  CHECK_EQUAL(count, 0U);
  CHECK_EQUAL(lockstep_send_message(1, "abc", 3, kLong), 0);
  CHECK_EQUAL(lockstep_send_message(0, "abc", 3, kLong), -1);
  CHECK(other.endpoint->next_control(kLong).bytes == bytes_of("abc"));
  CHECK(other.endpoint->send_control(0, bytes_of("answer"), kLong));
  CHECK_EQUAL(lockstep_next_message(kLong, &bytes, &count), 1);
  CHECK_EQUAL(std::string(static_cast<const char*>(bytes), count), "answer");
  CHECK(lockstep_is_lost(1) == 0 && lockstep_is_lost(5) == 0);
  // jaxlib starts its collectives once more.
  auto waiting = in_background([] {
    const void* none;
    std::uint64_t zero;
    return lockstep_next_message(kLong, &none, &zero);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Engine::instance().initialize();
  CHECK_EQUAL(waiting.get(), -2);
}

TEST(the_interface_of_c) {
  const void* bytes = nullptr;
  std::uint64_t count = 0;
  CHECK_EQUAL(lockstep_next_message(kLong, &bytes, &count), -2);
  CHECK_EQUAL(lockstep_send_message(1, "x", 1, kLong), -1);
  CHECK_EQUAL(lockstep_is_lost(1), 0);
  run_in_child(exchange_through_c);
}

}  // namespace lockstep::testing::messages
