// Lines about refused peers: the first with each reason at once, the others as a count.
#include <algorithm>
#include <chrono>
#include <string>

#include "base/refusal_log.h"
#include "captured_stderr.h"
#include "check.h"
#include "hosts.h"

namespace lockstep::testing::refusal_logs {

TEST(further_refusals_are_counted) {
  const Stderr said;
  RefusalLog log("process 0 (pid 4 on a)", std::chrono::seconds(1));
  for (const std::string peer : {"10.0.0.1", "10.0.0.2", "10.0.0.3"})
    log.add("refused a connection from " + peer, "why");
  CHECK_EQUAL(said.text(),
              "lockstep: process 0 (pid 4 on a) refused a connection from 10.0.0.1: why. The job "
              "goes on. Further refusals are counted once a minute.\n");
  log.add("refused a connection from 10.0.0.4", "another reason");
  CHECK_CONTAINS(said.text(), "from 10.0.0.4: another reason. The job goes on.\n");
  const auto report = [&] {
    log.report_due();
    return std::ranges::count(said.text(), '\n') == 3;
  };
  eventually(report, "the count");
  CHECK_CONTAINS(said.text(), "lockstep: process 0 (pid 4 on a): 2 more refusals in the last ",
                 "; the latest: it refused a connection from 10.0.0.3: why. The job goes on.\n");
  CHECK_EQUAL(log.total(), std::size_t{4});
}

}  // namespace lockstep::testing::refusal_logs
