// Between hosts: an abort reaches each peer, also beside peers that read nothing.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "control/network/endpoint.h"
#include "hosts.h"

namespace lockstep::testing::aborts {

constexpr int kStuck = 8;
// So long that an abort which waits for a stuck peer comes after the end of any test.
constexpr std::chrono::seconds kGrace{60};

// Process 0, and peers 1 to `count` that each have a host, and read only what the test reads.
struct Crowd {
  struct Member {
    Listener listener = listen_anywhere();
    std::unique_ptr<Peer> out, in;
  };
  std::vector<std::string> labels{"process 0"};  // the endpoint of the host refers to them
  Host host;
  std::vector<Member> members;

  explicit Crowd(int count) : members(static_cast<std::size_t>(count)) {
    EndpointOptions options = host.options({""});
    options.send_grace = kGrace;
    for (const Member& member : members) {
      labels.push_back("process " + std::to_string(labels.size()));
      options.addresses.push_back(member.listener.address);
    }
    auto joining = in_background([&] {
      host.endpoint = std::make_unique<Endpoint>(options, 0, kNonce, labels, host.arena);
    });
    for (int process = 1; process <= count; ++process) {
      Member& one = member(process);
      one.out = std::make_unique<Peer>(host.listener.address);
      one.out->send(greeting_of(process));
      one.in = std::make_unique<Peer>(one.listener);
      one.in->welcome(process);
    }
    joining.get();
  }

  Member& member(int process) { return members[static_cast<std::size_t>(process - 1)]; }

  // Sends until the connection to that peer takes no more.
  void fill(int process) {
    const Bytes bytes(ControlMessages::kPart);
    while (host.endpoint->send_control(process, bytes, 0.05)) {
    }
  }

  // The text of the abort that this peer receives, behind everything that was sent before.
  std::string read_abort(int process) {
    for (Bytes rest;;) {
      const Frame frame = member(process).in->receive(rest);
      if (frame.kind == Frame::kAbort) return shown(rest);
      CHECK_EQUAL(frame.kind, std::uint32_t{Frame::kControl});
    }
  }
};

TEST(peers_that_read_nothing_delay_no_other) {
  Crowd crowd(kStuck + 1);
  for (int process = 1; process <= kStuck; ++process) crowd.fill(process);
  auto aborting = in_background([&] { crowd.host.arena->abort("a text"); });
  CHECK_EQUAL(crowd.read_abort(kStuck + 1), "a text");
  // The stuck peers receive the abort as well, in whatever order they begin to read.
  for (int process = kStuck; process >= 1; --process)
    CHECK_EQUAL(crowd.read_abort(process), "a text");
  aborting.get();
}

// A progress thread that detects a failure goes on reading while the failure is reported.
TEST(an_abort_does_not_keep_the_progress_thread_from_reading) {
  Crowd crowd(kStuck + 2);
  const int lost = kStuck + 1, healthy = kStuck + 2;
  for (int process = 1; process <= kStuck; ++process) crowd.fill(process);
  crowd.member(lost).out.reset();
  CHECK_CONTAINS(crowd.read_abort(healthy), "process 9 has ended, or its host");
  crowd.member(healthy).out->send({.kind = Frame::kLeave});
  eventually([&] { return crowd.host.endpoint->has_left(healthy) != 0; }, "word that it left");
  for (int process = 1; process <= kStuck; ++process)
    CHECK_CONTAINS(crowd.read_abort(process), "process 9 has ended, or its host");
}

}  // namespace lockstep::testing::aborts
