// A job of one host has a network too, in which no process can be reached.
#include <array>

#include "check.h"
#include "harness.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::networks {

TEST(a_job_of_one_host_reaches_no_process) {
  run_healthy(layout("2x1"), {}, [](Rank& rank) {
    Network& network = rank.job.network();
    const int other = 1 - rank.process();
    CHECK(!network.spans_hosts() && !network.reaches(other));
    CHECK_EQUAL(network.address(), "");
    CHECK(network.connect(other) == Network::Connecting::kNever);
    CHECK(!network.is_connected(other) && !network.is_lost(other));
    CHECK(!network.send_control(other, std::array<std::byte, 3>{}, 20));
    // This returns at once, because no message will come.
    CHECK_EQUAL(network.next_control(20).process, int{ControlMessage::kOver});
    CHECK(rank.job.has_left(other) == nullptr);
    network.leave();
    network.stop();
    run_case(*rank.all(), {.count = 10, .seed = 1});
  });
}

}  // namespace lockstep::testing::networks
