// Between hosts: which peers are accepted, and what breaks the rules.
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "captured_stderr.h"
#include "check.h"
#include "control/network/endpoint.h"
#include "harness.h"
#include "hosts.h"

namespace lockstep::testing::endpoints {

int bounded_connections() {
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int bytes = 0;
    socklen_t size = sizeof(bytes);
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) == 0 && bytes == kBoundedSendBuffer)
      ++found;
  }
  return found;
}

// Both processes know from the other's answer that it runs on their machine. On a busy one a round
// trip may take long: then a connection is left as it is.
TEST(connections_within_a_machine_hold_little) {
  CHECK_EQUAL(bounded_connections(), 0);
  CHECK(machine_number() != 0);
  int bounded = 0;
  for (int round = 0; round < 20 && bounded < 2; ++round) {
    Two two;
    bounded = bounded_connections();
    two.exchange(1);
  }
  CHECK_EQUAL(bounded, 2);
}

TEST(messages_before_their_stream_is_open) {
  Ring from, to;
  Two two;
  two.hosts[0].endpoint->channels().open(ChannelId{1, 0, 1}, from.send_ring());
  for (std::uint32_t i = 0; i < Ring::kCount; ++i) {
    from.slots[i * Ring::kBytes + kSlotHeader] = static_cast<std::byte>(i + 1);
    two.hosts[0].endpoint->send({1, 0, 1}, i, from.message(i, 1), two.hosts[0].limits());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  two.hosts[1].endpoint->channels().open(ChannelId{1, 0, 0}, to.receive_ring());
  eventually([&] { return to.written.reached(Ring::kCount); }, "early messages");
  for (std::uint32_t i = 0; i < Ring::kCount; ++i)
    CHECK(to.slots[i * Ring::kBytes + kSlotHeader] == static_cast<std::byte>(i + 1));
  CHECK(two.healthy());
}

TEST(another_key_on_one_host) {
  for (const bool encrypt : {true, false}) {
    Host hosts[2];
    for (Host& host : hosts) host.encrypt = encrypt;
    const Stderr said;
    for (const std::string& error : errors_of_joining(hosts, {.second_key = 8}))
      CHECK_CONTAINS(error, "connection to process", "same key", "LOCKSTEP_KEY_FILE");
  }
}

TEST(processes_of_another_job) {
  Host hosts[2];
  const Stderr said;
  const auto errors = errors_of_joining(hosts, {.nonces = {6, 5}});
  said.wait_for("it belongs to another job");
  // The one that is refused first does not stay to answer the other.
  CHECK_CONTAINS(errors[0] + errors[1], "has refused the connection of process",
                 "it belongs to another job");
}

TEST(no_process_there) {
  Host host;
  std::string gone = listen_anywhere().address;
  CHECK_CONTAINS(ERROR_OF(host.join(0, gone)), "process 0 cannot reach process 1 at 127.0.0.1",
                 "Connection refused");
  CHECK_CONTAINS(ERROR_OF(host.join(0, "nonsense:x")), "cannot reach process 1 at nonsense:x");
}

TEST(unauthenticated_peers_are_refused_and_reported) {
  Two two(true);
  const Stderr said;
  const std::string& address = two.hosts[0].listener.address;
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "\0\0\0\0\0\0"})
    be_refused(address, text);
  two.exchange(1);
  CHECK(two.healthy());
  CHECK_CONTAINS(said.text(), "process 0 refused a connection from 127.0.0.1 port",
                 "has not shown that it has the job's key", "The job goes on");
}

TEST(of_many_refusals_one_is_reported) {
  Two two(true);
  const Stderr said;
  for (int i = 0; i < 30; ++i) be_refused(two.hosts[0].listener.address, "GET /");
  two.exchange(1);
  CHECK(two.healthy());
  CHECK_CONTAINS(said.text(), "refused a connection");
  CHECK_EQUAL(said.text().find("refused"), said.text().rfind("refused"));
  CHECK_CONTAINS(said.text(), "Further refusals are counted once a minute.");
}

TEST(silent_unauthenticated_peers_hold_up_no_process) {
  Two two(true);
  const Stderr said;
  std::vector<Descriptor> silent;
  for (int i = 0; i < 80; ++i)
    silent.push_back(
        connect_to(two.hosts[0].listener.address, Clock::now() + std::chrono::seconds(5)));
  said.wait_for("too many have connected");
  two.exchange(1);
  CHECK(two.healthy());
}

// Idle connections push out idle ones, and no process of the job is kept out.
TEST(the_oldest_unauthenticated_peer_is_evicted) {
  Host host;
  Channels channels;
  const Stderr said;
  ProgressThread progress(host.listener.fd.get(), {}, {false, true}, 0, kNonce, kLabels,
                          tls_of_hosts(), channels, *host.arena);
  const auto end = Clock::now() + std::chrono::seconds(20);
  std::vector<Descriptor> silent;
  for (int i = 0; i < ProgressThread::kMaxUnauthenticated + 1; ++i)
    silent.push_back(connect_to(host.listener.address, end));
  Peer peer(host.listener.address);
  eventually([&] { return is_closed(silent[0].get()); }, "the end of the oldest");
  CHECK(!is_closed(silent.back().get()));
  CHECK_EQUAL(said.text().find("key, and it is the oldest"),
              said.text().rfind("key, and it is the oldest"));
  peer.send(greeting_of(1));
  progress.wait_for_processes(end);
}

// Unauthenticated peers took its place.
TEST(a_connection_that_is_dropped_is_tried_again) {
  Host host;
  const Listener listener = listen_anywhere();
  auto joining = in_background([&] { host.join(0, listener.address); });
  accept_one(listener);  // dropped at once
  {
    const Descriptor from = accept_one(listener);
    char hello[10];
    eventually([&] { return recv(from.get(), hello, sizeof(hello), 0) > 0; },
               "a part of a greeting");
  }  // with a reset, for the rest is not read
  {
    const Peer dropped(listener);
  }  // the other end may think that it has been accepted
  Peer in(listener), out(host.listener.address);
  in.welcome(1);
  out.send(greeting_of(1));
  joining.get();
  CHECK(!host.arena->aborted());
}

TEST(an_answer_of_another_process_is_refused) {
  Host host;
  const Listener listener = listen_anywhere();
  auto joining = in_background([&] { return ERROR_OF(host.join(0, listener.address)); });
  Peer in(listener);
  in.welcome(2);
  CHECK_CONTAINS(joining.get(), "its answer is not that of the process that is looked for");
}

// The peer has the key, and says nothing.
TEST(a_connection_without_a_greeting_expires) {
  Host hosts[2];
  for (Host& host : hosts) host.stays_open = true;
  hosts[0].greeting_timeout = std::chrono::milliseconds(300);
  join_each_other(hosts);
  const Stderr said;
  const Peer silent(hosts[0].listener.address);
  eventually([&] { return is_closed(silent.fd.get()); }, "its end");
  said.wait_for("it has not said in time which process it is");
  CHECK(!hosts[0].arena->aborted());
}

TEST(the_port_is_closed_when_all_have_met) {
  Two two;
  for (const Host& host : two.hosts)
    eventually([&] { return connection_error(host.listener.address) == "Connection refused"; },
               "the end of the port");
  two.exchange(1);
  CHECK(two.healthy());
}

TEST(a_peer_with_the_key_and_no_place) {
  Impostor one(1, 0, true);
  const Stderr said;
  Frame frame = greeting_of(1);
  const auto refused = [&](const Frame& wrong, const char* why) {
    const auto peer = one.connect(wrong);
    said.wait_for(why);
  };
  refused(frame, "has connected already");
  frame.index = 0;
  refused(frame, "a process that is not of another host");
  frame.index = 7;
  refused(frame, "a process that is not of another host");
  frame.to = 1;
  refused(frame, "it looks for another process");
  frame.index = 2;
  frame.to = 0;
  frame.number = 1;
  refused(frame, "it runs another version");
  frame = {.kind = Frame::kAbort, .index = 1};
  refused(frame, "it does not speak as Lockstep does");
}

TEST(frames_that_break_the_rules) {
  const std::string header(kSlotHeader, '\0');
  const auto breaks = [&](Frame frame, const std::string& rest, const char* why) {
    Ring ring;
    Impostor one;
    one.host.endpoint->channels().open(ChannelId{1, 0, 1}, ring.receive_ring());
    frame.clique = 1;
    one.send(frame, rest);
    CHECK_CONTAINS(failure_of(*one.host.arena), "process 1 has ended", "process 0", why);
    CHECK_EQUAL(ring.written.load(), 0u);
  };
  const std::uint32_t message = Frame::kMessage, most = Ring::kBytes;
  breaks({.kind = message, .number = 1, .bytes = 64}, header, "out of turn");
  breaks({.kind = message, .bytes = 10}, "0123456789", "without a header");
  breaks({.kind = message, .bytes = 0}, "", "without a header");
  breaks({.kind = message, .bytes = most + 1}, header, "too long");
  breaks({.kind = message, .index = 9, .bytes = 0xffffffff}, header, "too long");
  breaks({.kind = message, .index = 9, .number = 1, .bytes = 64}, header, "out of turn");
  breaks({.kind = Frame::kRelease}, "", "was not sent");
  breaks({.kind = Frame::kAbort, .bytes = kAbortText + 1}, "", "too long");
  breaks({.kind = Frame::kLeave, .bytes = 1}, "", "too long");
  breaks({.kind = Frame::kControl, .bytes = ControlMessages::kPart + 1}, "", "too long");
  breaks({.kind = Frame::kControl, .bytes = 2}, "ab", "a control message out of turn");
  breaks({.kind = Frame::kControl, .number = 1}, "", "a control message out of turn");
  breaks({.kind = Frame::kGreeting}, "", "does not speak");
  breaks({.kind = 77}, "", "not known");
}

TEST(unread_messages_are_not_overwritten) {
  Ring ring;
  Impostor one;
  one.host.endpoint->channels().open(ChannelId{1, 0, 1}, ring.receive_ring());
  for (std::uint32_t i = 0; i <= Ring::kCount; ++i)
    one.send({.kind = Frame::kMessage, .clique = 1, .number = i, .bytes = 65},
             std::string(kSlotHeader, '\0') + static_cast<char>('a' + i));
  CHECK_CONTAINS(failure_of(*one.host.arena), "a message without room");
  CHECK_EQUAL(ring.written.load(), Ring::kCount);
  CHECK(ring.slots[kSlotHeader] == std::byte{'a'});
}

}  // namespace lockstep::testing::endpoints
