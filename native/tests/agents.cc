// Agents: they answer when the processes of their host cannot, and the job never depends on them.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "core/clique.h"
#include "hosts.h"

namespace lockstep::testing::agents {

// What must not happen has this long to do so.
constexpr std::chrono::milliseconds kWhile{150};

// A job of members on these hosts, of which the last ones are agents. Each has an arena of its
// own; those that are `apart` are children of this process.
class Cluster {
  const std::vector<int> hosts_;
  const int num_agents_;
  const bool defers_;
  std::vector<std::string> labels_;  // which the networks of `members` look at while they live
  std::map<int, pid_t> children_;

 public:
  // `defers`: connections are made when they are first needed.
  Cluster(std::vector<int> hosts, int num_agents, const std::set<int>& apart = {},
          bool defers = false)
      : hosts_(std::move(hosts)), num_agents_(num_agents), defers_(defers), members(hosts_.size()) {
    for (int i = 0; i < size(); ++i)
      labels_.push_back((is_agent(i) ? "agent " : "process ") + std::to_string(i));
    for (const int member : apart) children_[member] = child(member);
    std::vector<std::future<void>> joining;
    for (int i = 0; i < size(); ++i)
      if (!apart.contains(i)) joining.push_back(in_background([this, i] { join(i); }));
    for (auto& one : joining) one.get();
  }
  ~Cluster() {
    while (!children_.empty()) kill(children_.begin()->first);
  }

  std::deque<Ring> rings;
  std::deque<Host> members;

  Endpoint& operator[](int member) const { return *at(member).endpoint; }
  Arena& arena(int member) const { return *at(member).arena; }
  bool meets(int one, int other) const {
    return host(one) != host(other) && !(is_agent(one) && is_agent(other));
  }
  void kill(int member) {
    ::kill(children_.at(member), SIGKILL);
    waitpid(children_.at(member), nullptr, 0);
    children_.erase(member);
  }
  void exchange(std::uint64_t clique) {
    testing::exchange(rings, members[0], members[1], clique);
    CHECK(!arena(0).aborted() && !arena(1).aborted());
  }
  // A control message goes there, and one comes back.
  void correspond(int one, int other) const {
    for (const auto& [from, to] : {std::pair{one, other}, std::pair{other, one}}) {
      const std::string words = "from " + std::to_string(from);
      CHECK((*this)[from].send_control(to, bytes_of(words), kLong));
      const ControlMessage message = (*this)[to].next_control(kLong);
      CHECK_EQUAL(message.process, from);
      CHECK(std::ranges::equal(message.bytes, bytes_of(words)));
    }
  }

 private:
  int size() const { return static_cast<int>(members.size()); }
  int host(int member) const { return hosts_[static_cast<std::size_t>(member)]; }
  bool is_agent(int member) const { return member >= size() - num_agents_; }
  const Host& at(int member) const { return members[static_cast<std::size_t>(member)]; }

  void join(int member) {
    Host& own = members[static_cast<std::size_t>(member)];
    EndpointOptions options = own.options({});
    for (int i = 0; i < size(); ++i) {
      options.addresses.push_back(meets(member, i) ? at(i).listener.address : "");
      const bool known = is_agent(member) && host(i) == host(member) && children_.contains(i);
      options.pids.push_back(known ? children_.at(i) : 0);
    }
    options.num_agents = num_agents_;
    if (defers_) options.hosts = hosts_;
    own.endpoint = std::make_unique<Endpoint>(options, member, kNonce, labels_, own.arena);
  }
  pid_t child(int member) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    join(member);
    for (;;) pause();
  }
};

// Two hosts with a process each, 0 and 1, and an agent each, 2 and 3.
Cluster pairs(const std::set<int>& apart = {}) { return Cluster({0, 1, 0, 1}, 2, apart); }

TEST(pairs_of_each_round) {
  Cluster job = pairs();
  for (int one = 0; one < 4; ++one)
    for (int other = 0; other < 4; ++other)
      CHECK_EQUAL(job[one].reaches(other), job.meets(one, other));
  job.exchange(1);
  for (int member = 0; member < 4; ++member) {
    CHECK(!job.arena(member).aborted());
    for (int other = 0; other < 4; ++other) CHECK(!job[member].is_lost(other));
  }
}

TEST(an_agent_that_does_not_come_is_done_without) {
  std::deque<Ring> rings;  // which outlive the networks
  Host processes[2];
  const Listener silent = listen_anywhere();  // takes the connection, and says nothing
  const auto join = [&](int own, const std::string& address, const std::string& agent) {
    Host& host = processes[own];
    EndpointOptions options = host.options({});
    options.addresses = {own == 0 ? "" : address, own == 0 ? address : "", agent};
    options.num_agents = 1;
    options.agent_connect_timeout_seconds = 0.3;
    host.endpoint = std::make_unique<Endpoint>(options, own, kNonce, kOpenLabels, host.arena);
  };
  std::thread joining([&] { join(1, processes[0].listener.address, ""); });
  join(0, processes[1].listener.address, silent.address);
  joining.join();
  CHECK(processes[0].endpoint->is_lost(2));
  CHECK(!processes[0].endpoint->reaches(2));
  CHECK(!processes[0].endpoint->send_control(2, bytes_of("request"), kLong));
  CHECK(!processes[1].endpoint->is_lost(2));  // of its own host
  testing::exchange(rings, processes[0], processes[1], 1);
  CHECK(!processes[0].arena->aborted() && !processes[1].arena->aborted());
}

TEST(notes_of_agents) {
  const Cluster job = pairs();
  for (const auto& [process, agent] : {std::pair{0, 3}, std::pair{1, 2}}) {
    job.correspond(process, agent);
    job.correspond(process, agent);
  }
  CHECK(!job[2].send_control(3, bytes_of("x"), kLong));  // no connection
  CHECK(!job[0].send_control(2, bytes_of("x"), kLong));
}

// Four hosts with a process each, 0 to 3, and an agent each, 4 to 7. Hosts 0 and 3 are no
// neighbors.
Cluster four_hosts(const std::set<int>& apart = {}) {
  return Cluster({0, 1, 2, 3, 0, 1, 2, 3}, 4, apart, true);
}

TEST(an_agent_connects_when_it_is_needed) {
  Cluster job = four_hosts({3});
  CHECK(job[0].has_met(5) && job[0].has_met(6) && !job[0].has_met(7));
  CHECK(job[0].reaches(7) && !job[0].reaches(4) && !job[6].reaches(7));
  job.kill(3);
  eventually([&] { return job.arena(1).aborted(); }, "an error");
  job.correspond(0, 7);  // the neighbors of host 3 say nothing here
  CHECK(job[0].has_met(7) && !job[0].is_lost(7));
  for (const int member : {0, 2, 4, 5, 6, 7})
    eventually([&] { return job.arena(member).aborted(); }, "word of the error");
}

TEST(an_agent_that_has_ended_before_it_was_needed) {
  Cluster job = four_hosts({7});
  job.kill(7);
  eventually([&] { return job[1].is_lost(7); }, "the loss");
  CHECK(!job[0].is_lost(7));
  CHECK(!job[0].send_control(7, bytes_of("request"), kLong));  // nothing listens there
  job.correspond(0, 3);
  for (const int member : {0, 1, 2, 3}) CHECK(!job.arena(member).aborted());
}

TEST(an_agent_answers_when_the_process_of_its_host_was_killed) {
  Cluster job = pairs({1});
  job.kill(1);
  eventually([&] { return job.arena(0).aborted(); }, "an error");
  CHECK(job[0].is_lost(1));
  CHECK_EQUAL(failure_of(job.arena(3)), job.arena(0).abort_text());
  job.correspond(0, 3);
  CHECK(!job[0].is_lost(3) && !job[3].is_lost(0));
  std::this_thread::sleep_for(2 * kWhile);
  CHECK(!job[3].is_lost(1));  // of its own host: it cannot tell a death from a normal end
}

// Process 1 and the agent, 2, hear of it in no other way than by each other.
TEST(a_process_that_is_lost_to_an_agent) {
  Cluster job({0, 0, 1}, 1, {0});
  CHECK(!job[2].is_lost(0));
  job.kill(0);
  eventually([&] { return job[2].is_lost(0); }, "the loss");
  std::this_thread::sleep_for(kWhile);
  job.correspond(1, 2);
  for (const int member : {1, 2}) CHECK(!job.arena(member).aborted());
  CHECK(!job[1].is_lost(2));
  CHECK(!job[2].send_control(0, bytes_of("x"), kLong));
}

TEST(an_agent_passes_no_abort_on) {
  Cluster job({0, 0, 1}, 1);
  job.arena(0).abort("lockstep: the test ends this job.");
  CHECK_EQUAL(failure_of(job.arena(2)), "lockstep: the test ends this job.");
  std::this_thread::sleep_for(kWhile);
  job.correspond(1, 2);
  job.correspond(0, 2);
  job[2].leave();
  eventually([&] { return job[1].has_left(2).load() != 0; }, "word that it left");
  CHECK(!job.arena(1).aborted());
  CHECK(!job[1].is_lost(2));
}

TEST(a_killed_agent) {
  Cluster job = pairs({3});
  job.exchange(1);
  job.kill(3);
  eventually([&] { return job[0].is_lost(3); }, "the loss");
  std::this_thread::sleep_for(kWhile);
  job.exchange(2);
  CHECK(!job[0].send_control(3, bytes_of("x"), kLong));
  job[0].leave();
  eventually([&] { return job[1].has_left(0).load() != 0; }, "word that it left");
  job.arena(0).abort("lockstep: the test ends this job.");
  CHECK_EQUAL(failure_of(job.arena(1)), "lockstep: the test ends this job.");
}

TEST(an_agent_that_takes_leave) {
  Cluster job = pairs();
  job[3].leave();
  eventually([&] { return job[0].has_left(3).load() != 0; }, "word that it left");
  job.correspond(0, 3);
  job.members[3].endpoint.reset();
  eventually([&] { return !job[0].send_control(3, bytes_of("x"), kLong); },
             "the end of its connection");
  std::this_thread::sleep_for(kWhile);
  CHECK(!job[0].is_lost(3));
  job.exchange(1);
}

TEST(an_agent_that_breaks_the_rules_costs_the_job_nothing) {
  const std::string header(kSlotHeader, '\0');
  const auto breaks = [&](Frame frame, const std::string& rest) {
    Ring ring;
    Impostor agent(1, 1);
    Endpoint& endpoint = *agent.host.endpoint;
    endpoint.channels().open(ChannelId{1, 0, 1}, ring.receive_ring());
    endpoint.channels().open(ChannelId{1, 0, 1}, ring.send_ring());
    agent.send(frame, rest);
    eventually([&] { return endpoint.is_lost(1); }, "the end of the agent");
    eventually([&] { return is_closed(agent.out->fd.get()); }, "the end of its connection");
    std::this_thread::sleep_for(kWhile / 3);
    CHECK(!agent.host.arena->aborted());
    CHECK_EQUAL(ring.written.load() + ring.read.load(), 0u);
  };
  breaks({.kind = Frame::kAbort, .bytes = 4}, "dead");
  breaks({.kind = Frame::kMessage, .clique = 1, .bytes = 64}, header);
  breaks({.kind = Frame::kMessage, .clique = 2, .bytes = 64}, header);
  breaks({.kind = Frame::kRelease, .clique = 1}, "");
  breaks({.kind = Frame::kControl, .bytes = 2}, "ab");
  breaks({.kind = 77}, "");
}

TEST(an_agent_takes_no_messages) {
  const std::string header(kSlotHeader, '\0');
  for (const auto kind : {Frame::kMessage, Frame::kRelease}) {
    Impostor process(0, 1);
    process.send({.kind = kind, .clique = 1, .bytes = kind == Frame::kMessage ? 64u : 0u},
                 kind == Frame::kMessage ? header : "");
    eventually([&] { return process.host.endpoint->is_lost(0); }, "the end of the process");
    std::this_thread::sleep_for(kWhile);
    CHECK(!process.host.arena->aborted());
  }
}

// What processes have still to send when the job has failed is cut off after a second.
TEST(a_note_of_a_failed_job_may_take_its_time) {
  Impostor process(0, 1);
  process.send({.kind = Frame::kAbort, .bytes = 4}, "dead");
  eventually([&] { return process.host.arena->aborted(); }, "the error");
  auto sent = in_background([&] {
    return process.host.endpoint->send_control(
        0, std::vector<std::byte>(ControlMessages::kMaxLength), kLong);
  });
  CHECK(sent.wait_for(std::chrono::milliseconds(1800)) == std::future_status::timeout);
  std::vector<std::byte> bytes(1 << 20);
  eventually(
      [&] {
        for (std::size_t moved = 0;
             process.in[0]->session.read(bytes, moved) == Tls::Result::kDone && moved != 0;) {
        }
        return sent.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      },
      "the end of the message");
  CHECK(sent.get());
}

}  // namespace lockstep::testing::agents
