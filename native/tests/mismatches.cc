// Ranks that are in different calls: all raise a text that names both calls, and no byte is written
// that no call asked for.
#include "base/error.h"
#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::mismatches {

struct Pair {
  Case a, b;
  const char* text_a;
  const char* text_b;
};

const Case kSum{.count = 100};

Case many(Op op, std::size_t count) { return case_of(op, DType::kF32, count, 0); }

const Pair kPairs[] = {
    {kSum, many(Op::kAllGather, 100), "all-reduce (sum) of 100 x f32", "all-gather of 100 x f32"},
    {kSum, many(Op::kReduceScatter, 100), "all-reduce (sum) of 100 x f32",
     "reduce-scatter (sum) of 100 x f32"},
    {kSum, many(Op::kAllToAll, 100), "all-reduce (sum) of 100 x f32", "all-to-all of 400 x byte"},
    {kSum, {.dtype = DType::kI32, .count = 100}, "of 100 x f32", "of 100 x s32"},
    {{.reduction = Reduction::kMin, .count = 100},
     {.reduction = Reduction::kMax, .count = 100},
     "all-reduce (min)",
     "all-reduce (max)"},
    {kSum, {.count = 101}, "of 100 x f32", "of 101 x f32"},
    {kSum, {.count = 0}, "of 100 x f32", "of 0 x f32"},
    {kSum, {.count = 1'000'000}, "of 100 x f32", "of 1000000 x f32"},
    {many(Op::kAllGather, 100), many(Op::kAllGather, 200'000), "all-gather of 100 x f32",
     "all-gather of 200000 x f32"},
    {many(Op::kReduceScatter, 3), many(Op::kReduceScatter, 200'000),
     "reduce-scatter (sum) of 3 x f32", "reduce-scatter (sum) of 200000 x f32"},
};

// `odd` says which ranks make call b. The guards around every buffer are part of run_case, which
// throws before it looks at them: the buffers here are looked at in any case.
void call_with_guards(Communicator& end, const Case& what) {
  const auto size = static_cast<std::size_t>(end.size());
  const std::size_t bytes = what.count * size_of(what.dtype);
  Buffer in(bytes * size), out(bytes * size);
  const std::string error = ERROR_OF({
    if (what.op != Op::kAllToAll) {
      end.run(call_of(what, in.data(), out.data()));
    } else {
      for (int i = 1; i < end.size(); ++i)
        end.send_receive(in.data(), (end.rank() + i) % end.size(), out.data(),
                         (end.rank() + end.size() - i) % end.size(), bytes);
    }
  });
  in.check_guards();
  out.check_guards();
  throw Error(error);
}

void check_pairs(const Layout& where, Harness harness, const std::function<bool(Rank&)>& odd) {
  for (const Pair& pair : kPairs)
    for (const Outcome& outcome : run_job(where, {.harness = harness}, [&](Rank& rank) {
           call_with_guards(*rank.all(), odd(rank) ? pair.b : pair.a);
         }))
      CHECK_CONTAINS(outcome.error, pair.text_a, pair.text_b);
}

TEST(between_processes) {
  for (const Harness harness : kAll)
    for (const char* name : sample<const char*>({"2x1", "interleaved", "2x2", "3+1", "4x1"}, 2))
      check_pairs(layout(name), harness, [](Rank& rank) { return rank.process() == 1; });
}

TEST(between_devices_of_one_process) {
  for (const Harness harness : kAll)
    for (const char* name : sample<const char*>({"1x4", "2x2", "2x4"}, 2))
      check_pairs(layout(name), harness, [](Rank& rank) { return rank.index == 1; });
}

TEST(the_message_names_the_processes) {
  for (const Outcome& outcome : run_job(layout("2x2"), {}, [](Rank& rank) {
         const auto end = rank.all();
         for (int i = 0; i < 3; ++i) run_case(*end, {.count = 10});
         run_case(*end, {.count = rank.process() == 0 ? std::size_t{10} : std::size_t{11}});
       }))
    CHECK_CONTAINS(outcome.error, "4 devices (0, 1, 2048, 2049)", "process 0 called all-reduce",
                   "process 1 called all-reduce", "(collective 3)", "same program");
}

TEST(permutes_of_different_lengths) {
  for (const Harness harness : kAll)
    for (const char* name : {"2x1", "1x4"})
      for (const std::size_t longer : {1001, 1'000'000})
        for (const bool sender_is_longer : {false, true}) {
          const auto outcomes = run_job(layout(name), {.harness = harness}, [&](Rank& rank) {
            const auto end = rank.all();
            const std::size_t bytes = (rank.index == 0) == sender_is_longer ? longer : 1000;
            Buffer data(bytes);
            const std::string error = ERROR_OF({
              if (rank.index == 0) end->wait(end->send(1, data.data(), bytes));
              if (rank.index == 1) end->wait(end->receive(0, data.data(), bytes));
              // A short message may have left the sender; its next one meets the failure.
              if (rank.index == 0) run_case(*end, {.count = 1});
              if (rank.index > 1) run_case(*end, {.count = 1});
            });
            data.check_guards();
            throw Error(error);
          });
          const std::string sent = std::to_string(sender_is_longer ? longer : 1000);
          const std::string expected = std::to_string(sender_is_longer ? 1000 : longer);
          for (const Outcome& outcome : outcomes)
            CHECK_CONTAINS(outcome.error, " sends " + sent + " bytes", " expects " + expected);
        }
}

// What no known jaxlib does must end the job too, not leave the others waiting.
TEST(calls_out_of_pattern) {
  for (const char* name : {"2x1", "1x4"}) {
    const auto unknown = run_job(layout(name), {.timeout_seconds = 0}, [](Rank& rank) {
      const auto end = rank.all();
      if (rank.index != 0) run_case(*end, {.count = 1});
      std::byte data[2] = {};
      end->send_receive(data, 0, data + 1, 0, 1);
    });
    for (const Outcome& outcome : unknown)
      CHECK_CONTAINS(outcome.error, "a Sendrecv that is not part of an all-to-all");
  }
  const auto inside = run_job(layout("4x1"), {.timeout_seconds = 0}, [](Rank& rank) {
    const auto end = rank.all();
    std::byte data[2] = {};
    if (rank.index == 0) end->send_receive(data, 1, data + 1, 3, 1);
    run_case(*end, {.count = 1});
  });
  for (const Outcome& outcome : inside)
    CHECK_CONTAINS(outcome.error, "all-reduce in the middle of an all-to-all");
}

TEST(a_reduction_that_the_type_does_not_have) {
  for (const char* name : {"1x4", "2x2"})
    for (const Outcome& outcome : run_job(layout(name), {}, [](Rank& rank) {
           call_with_guards(*rank.all(),
                            {.dtype = DType::kC64, .reduction = Reduction::kMax, .count = 10});
         }))
      CHECK_CONTAINS(outcome.error, "no reduction max for c64");
}

}  // namespace lockstep::testing::mismatches
