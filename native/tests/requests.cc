// Requests of ranks to the watchdog: numbers, times, and what becomes of a response that does not
// come.
#include "control/requests.h"

#include <future>
#include <thread>

#include "check.h"
#include "harness.h"
#include "hosts.h"

namespace lockstep::testing::requests {

using Response = Requests::Response;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLong = 20s, kShort = 1s, kNever = 24h;
const Requests::Pair kPair{1, 7};

struct Watched {
  WakeUp wake_up;
  std::atomic<std::uint32_t> abort{0};
  Requests requests{wake_up, abort};
  Watched() { requests.set_watched(true); }

  std::future<Response> request(const char* text, std::chrono::milliseconds timeout) {
    return in_background([=, this] { return requests.request(text, timeout); });
  }
  Response compare(std::chrono::milliseconds timeout) {
    return requests.compare(kPair, [] { return "programs"; }, timeout);
  }
  std::uint64_t number_of(const char* text) {
    Requests::Request request;
    eventually([&] { return (request = requests.next()).text == text; }, text);
    return request.number;
  }
};

TEST(a_late_response_is_not_taken_for_another) {
  Watched watched;
  CHECK(watched.requests.request("early", 10ms) == Response::kUnknown);
  CHECK_EQUAL(watched.requests.next().number, 0u);
  auto later = watched.request("later", kLong);
  const std::uint64_t other = watched.number_of("later");
  watched.requests.respond(other - 1, Response::kYes);
  CHECK_EQUAL(watched.requests.next().number, other);
  watched.requests.respond(other, Response::kNo);
  CHECK(later.get() == Response::kNo);
}

TEST(a_request_behind_another_has_its_own_time) {
  Watched watched;
  auto first = watched.request("first", kShort);
  watched.number_of("first");
  auto second = watched.request("second", kShort);
  CHECK(watched.requests.respond(watched.number_of("second"), Response::kYes));
  CHECK(first.get() == Response::kUnknown);
  CHECK(second.get() == Response::kYes);
}

TEST(a_comparison_that_was_not_answered_is_looked_for_again) {
  for (const Response response : {Response::kYes, Response::kNo}) {
    Watched watched;
    CHECK(watched.compare(10ms) == Response::kUnknown);
    const std::uint64_t number = watched.number_of("programs");
    // This request is not waited for again, and others go first.
    CHECK(watched.compare(kLong) == Response::kUnknown);
    auto other = watched.request("other", kLong);
    watched.requests.respond(watched.number_of("other"), Response::kYes);
    CHECK(other.get() == Response::kYes);
    CHECK_EQUAL(watched.requests.next().number, number);
    CHECK(!watched.requests.respond(number, response));  // no rank waits for it
    for (int i = 0; i < 3; ++i) CHECK(watched.compare(kLong) == response);
    CHECK_EQUAL(watched.requests.next().number, 0u);
  }
}

TEST(a_comparison_of_which_the_watchdog_knows_nothing_is_asked_again) {
  Watched watched;
  auto first = in_background([&] { return watched.compare(kLong); });
  const std::uint64_t number = watched.number_of("programs");
  watched.requests.respond(number, Response::kUnknown);
  CHECK(first.get() == Response::kUnknown);
  eventually(
      [&] {
        CHECK(watched.compare(kLong) == Response::kUnknown);
        return watched.requests.next().number > number;
      },
      "another request");
  watched.requests.respond(watched.requests.next().number, Response::kNo);
  CHECK(watched.compare(kLong) == Response::kNo);
}

TEST(no_request_waits_for_a_watchdog_that_is_not_there) {
  Watched watched;
  auto asked = watched.request("question", kLong);
  watched.number_of("question");
  watched.requests.set_watched(false);
  CHECK(asked.get() == Response::kUnknown);
  CHECK(watched.requests.request("another", kLong) == Response::kUnknown);
  CHECK(watched.compare(kLong) == Response::kUnknown);
}

TEST(a_failed_job_waits_for_no_response) {
  Watched watched;
  auto first = watched.request("first", kNever);
  watched.number_of("first");
  auto second = watched.request("second", kNever);
  watched.abort.store(2);
  CHECK(first.get() == Response::kUnknown);
  CHECK(second.get() == Response::kUnknown);
}

// An all-reduce of one element by the program of this execution; the two ranks bring a 1 each.
void add_ones(Communicator& end, std::int64_t execution) {
  float in = 1, out = 0;
  Call call = call_of({.count = 1}, &in, &out);
  call.origin = {execution, 3, 0};
  end.run(call);
  CHECK_EQUAL(out, 2);
}

// Look-alikes of two programs: the watchdog learns only after some calls that these are not one.
TEST(a_difference_that_is_found_late_fails_the_job) {
  const auto outcomes = run_job(layout("2x1"), {.timeout_seconds = 20}, [](Rank& rank) {
    const Watchdog watchdog(rank.job, [responses = 0](const std::string& text) mutable {
      const bool knows = !text.starts_with("programs ") || ++responses >= 3;
      return knows ? Response::kNo : Response::kUnknown;
    });
    const auto end = rank.all();
    for (int i = 0; i < 2000; ++i) {
      add_ones(*end, 77 + rank.index + 2 * i);
      std::this_thread::sleep_for(1ms);
    }
  });
  for (const Outcome& outcome : outcomes) CHECK_CONTAINS(outcome.error, "different collectives");
}

// The watchdog of process 0 finds the difference first, and that of process 1 is still at work when
// the job fails.
TEST(a_difference_is_an_error_also_where_the_comparison_is_cut_short) {
  const auto outcomes = run_job(layout("2x1"), {.timeout_seconds = 20}, [](Rank& rank) {
    const Watchdog watchdog(rank.job, [&](const std::string&) {
      return rank.index == 0 ? std::optional(Response::kNo) : std::nullopt;
    });
    add_ones(*rank.all(), 77 + rank.index);
  });
  for (const Outcome& outcome : outcomes) CHECK_CONTAINS(outcome.error, "different collectives");
}

}  // namespace lockstep::testing::requests
