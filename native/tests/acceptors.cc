// Connections that other hosts make at the same time, and how many of them one poll accepts.
#include <sys/epoll.h>

#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "check.h"
#include "harness.h"
#include "hosts.h"
#include "transport/tcp/acceptor.h"

namespace lockstep::testing::acceptors {

bool reports_input(const Descriptor& epoll) {
  epoll_event event;
  return epoll_wait(epoll.get(), &event, 1, 0) == 1;
}

TEST(a_poll_accepts_some_and_leaves_the_rest_to_the_next) {
  constexpr std::size_t kMany = 2 * Acceptor::kMaxAccepts + 3;
  const Listener listener = listen_anywhere();
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  Acceptor acceptor(listener.fd.get(), epoll.get());
  std::vector<Descriptor> from, to;
  for (std::size_t i = 0; i < kMany; ++i)
    from.push_back(connect_to(listener.address, Clock::now() + std::chrono::seconds(20)));
  for (const std::size_t expected :
       {Acceptor::kMaxAccepts, Acceptor::kMaxAccepts, std::size_t{3}}) {
    CHECK(reports_input(epoll));
    auto accepted = acceptor.accept_some();
    CHECK_EQUAL(accepted.size(), expected);
    for (Descriptor& fd : accepted) to.push_back(std::move(fd));
  }
  CHECK(!reports_input(epoll));
  CHECK_EQUAL(acceptor.accept_some().size(), 0U);
  for (const Descriptor& fd : to) CHECK(fd.get() >= 0);
}

TEST(a_closed_port_accepts_nothing) {
  const Listener listener = listen_anywhere();
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  Acceptor acceptor(listener.fd.get(), epoll.get());
  const Descriptor from = connect_to(listener.address, Clock::now() + std::chrono::seconds(20));
  acceptor.close();
  CHECK(!acceptor.is_open());
  CHECK_EQUAL(acceptor.accept_some().size(), 0U);
  CHECK_EQUAL(acceptor.address(), listener.address);
}

// More have shown the key, and not yet greeted, than may be unauthenticated at a time.
TEST(many_processes_at_a_time) {
  constexpr int kMany = 80;
  const Host host;
  Channels channels;
  std::vector<std::string> labels(kMany + 1, "one of many");
  std::vector<bool> is_remote(kMany + 1, true);
  is_remote[0] = false;
  ProgressThread progress(host.listener.fd.get(), {}, is_remote, 0, kNonce, labels, tls_of_hosts(),
                          channels, *host.arena);
  std::deque<Peer> peers;
  while (peers.size() < kMany) peers.emplace_back(host.listener.address);
  for (int i = 0; i < kMany; ++i) peers[static_cast<std::size_t>(i)].send(greeting_of(i + 1));
  progress.wait_for_processes(Clock::now() + std::chrono::seconds(20));
  CHECK(!host.arena->aborted());
}

}  // namespace lockstep::testing::acceptors
