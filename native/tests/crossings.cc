// Collectives on several hosts: every algorithm on hosts of different sizes, against the model, and
// the same bits on all ranks.
#include <algorithm>
#include <bit>

#include "check.h"
#include "collectives/collectives.h"
#include "core/clique.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::crossings {

struct Hosts {
  const char* name;
  std::vector<int> process_of;  // of each rank
  std::vector<int> host_of;     // of each process
};

// Hosts with one process and several, of equal and unequal size, with ranks in order and not.
std::vector<Hosts> all_hosts() {
  return {
      {"2 hosts", {0, 1}, {0, 1}},
      {"2 and 1 processes", {0, 1, 2}, {0, 0, 1}},
      {"2 x 2, devices apart", {0, 1, 2, 3, 0, 1, 2, 3}, {0, 0, 1, 1}},
      {"4 hosts, 2 devices", {0, 1, 0, 1, 2, 2, 3, 3}, {0, 1, 2, 3}},
      {"3 hosts, 3 devices", {0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 1, 2}},
      {"3 hosts", {0, 1, 2}, {0, 1, 2}},
      {"unequal", {0, 0, 1, 2, 2, 2, 3, 4, 5}, {0, 1, 1, 1, 2, 2}},
      {"hosts apart", {3, 2, 1, 0, 4}, {0, 1, 0, 1, 0}},
      {"4 hosts", {0, 1, 2, 3}, {0, 1, 2, 3}},
      {"5 hosts, 2 devices", {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, {0, 1, 2, 3, 4}},
      {"4 x 2", {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}},
      {"7 hosts", {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5, 6}},
      {"8 hosts", {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}},
  };
}

std::vector<std::uint64_t> run_on(const Hosts& hosts, const std::string& algorithms,
                                  const std::function<void(Rank&)>& body) {
  return run_healthy(Layout{hosts.name, hosts.process_of},
                     {.oversubscribed = true,
                      .cores = 1,
                      .encrypt = false,
                      .algorithms = algorithms,
                      .hosts = hosts.host_of},
                     body);
}

void run_sizes(Rank& rank, Op op, const std::vector<std::size_t>& counts) {
  const auto end = rank.all();
  std::uint32_t seed = 0;
  for (const std::size_t count : counts)
    for (const DType dtype : {DType::kF64, DType::kI8, DType::kC128})
      for (const Reduction reduction : reductions_of(op, dtype))
        run_case(*end, {op, dtype, reduction, count, ++seed});
}

TEST(every_algorithm) {
  constexpr struct {
    Op op;
    const char* text;
  } kAlgorithms[] = {
      {Op::kAllReduce, "all-reduce=recursive-doubling"},
      {Op::kAllReduce, "all-reduce=halving-doubling"},
      {Op::kAllReduce, "all-reduce=direct"},
      {Op::kAllReduce, "all-reduce=ring"},
      {Op::kAllGather, "all-gather=bruck"},
      {Op::kAllGather, "all-gather=pairwise"},
      {Op::kReduceScatter, "reduce-scatter=recursive-doubling"},
      {Op::kReduceScatter, "reduce-scatter=pairwise"},
      {Op::kAllToAll, "all-to-all=bruck"},
      {Op::kAllToAll, "all-to-all=pairwise"},
  };
  for (const Hosts& hosts : sample(all_hosts(), 3))
    for (const auto& [op, text] : kAlgorithms)
      run_on(hosts, text,
             [&, op = op](Rank& rank) { run_sizes(rank, op, {0, 1, 7, 130, 1000, 4099}); });
}

// Messages in one piece, in a few, and more than may be on their way.
TEST(pieces) {
  for (const Hosts& hosts : sample(all_hosts(), 3))
    for (const char* text : {"", "all-reduce=ring", "all-reduce=direct"})
      run_on(hosts, text, [&](Rank& rank) {
        const auto end = rank.all();
        const auto size = static_cast<std::size_t>(rank.size());
        std::uint32_t seed = 100;
        for (const Op op : kOps)
          for (const std::size_t bytes :
               {std::size_t{64 << 10}, std::size_t{(300 << 10) + 8}, std::size_t{(5 << 20) + 16}}) {
            if (*text != 0 && op != Op::kAllReduce) continue;
            const bool whole = op == Op::kAllReduce;
            const std::size_t count = std::max<std::size_t>(1, bytes / 8 / (whole ? 1 : size));
            run_case(*end, case_of(op, DType::kF64, count, ++seed));
          }
      });
}

TEST(in_place) {
  for (const Hosts& hosts : sample(all_hosts(), 3))
    for (const char* text : {"", "all-reduce=halving-doubling", "all-reduce=direct",
                             "all-reduce=ring", "all-reduce=recursive-doubling"})
      run_on(hosts, text, [](Rank& rank) {
        const auto end = rank.all();
        for (const std::size_t count : {0, 1, 1001, 8193, 200'003})
          run_case(*end, {Op::kAllReduce, DType::kI32, Reduction::kSum, count, 7, true});
      });
}

// The sums depend on their order. So do min and max of zeros of both signs: the order decides which
// of two equal operands they return.
TEST(the_same_bits_on_all_ranks_and_in_every_run) {
  for (const Hosts& hosts : sample(all_hosts(), 3))
    for (const char* text : {"", "all-reduce=halving-doubling", "all-reduce=direct",
                             "all-reduce=ring", "all-reduce=recursive-doubling"}) {
      const auto body = [](Rank& rank) {
        const auto end = rank.all();
        for (const std::size_t count : {5, 3000, 50'001})
          for (const DType dtype : {DType::kF32, DType::kC128}) {
            Buffer out = run_case(
                *end, {.dtype = dtype, .count = count, .seed = 5, .values = Values::kRough});
            rank.mix(out.data(), out.bytes());
          }
        std::vector<float> zeros(777), result(777);
        for (std::size_t i = 0; i < zeros.size(); ++i)
          zeros[i] = (i + static_cast<std::size_t>(rank.index)) % 3 == 0 ? -0.0F : 0.0F;
        for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
          const Case what{.reduction = reduction, .count = zeros.size()};
          end->run(call_of(what, zeros.data(), result.data()));
          rank.mix(result.data(), result.size() * sizeof(float));
        }
      };
      const auto digests = run_on(hosts, text, body);
      CHECK_EQUAL(std::ranges::count(digests, digests[0]), std::ssize(digests));
      CHECK(run_on(hosts, text, body) == digests);
    }
}

// Counts the messages of a process with one rank on each of H hosts.
TEST(messages_of_a_small_collective_grow_with_the_logarithm_of_the_hosts) {
  for (int hosts = 2; hosts <= rounds(13, 6); ++hosts) {
    const std::vector<int> all = one_rank_each(hosts).process_of;
    const Hosts each{"each on a host", all, all};
    const auto log2 = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(hosts - 1)));
    run_on(each, "", [&](Rank& rank) {
      const auto end = rank.all();
      const Clique& clique = rank.job.clique(rank.layout.devices());
      for (const Op op : kOps) {
        const std::size_t before = clique.messages_sent();
        run_case(*end, case_of(op, DType::kF64, 16, 1));
        const std::size_t sent = clique.messages_sent() - before;
        const bool reduces = op == Op::kAllReduce || op == Op::kReduceScatter;
        // Recursive doubling takes two more, for log2 H rounded down, if H is no power of two.
        if (reduces)
          CHECK(sent <= log2 + (std::has_single_bit(static_cast<unsigned>(hosts)) ? 0 : 1));
        else
          CHECK_EQUAL(sent, log2);
      }
    });
  }
}

// A host's processes and devices change nothing about what it sends.
TEST(messages_of_a_host_do_not_depend_on_its_processes) {
  const Hosts alone{"one process", {0, 1}, {0, 1}};
  const Hosts devices{"4 devices", {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1}};
  const Hosts processes{"4 processes", {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 0, 1, 1, 1, 1}};
  for (const Hosts& hosts : {alone, devices, processes}) {
    SharedCount sent;
    run_on(hosts, "", [&](Rank& rank) {
      const auto end = rank.all();
      run_case(*end, {Op::kAllReduce, DType::kF32, Reduction::kSum, 1000, 1});
      if (rank.layout.ranks_of(rank.process()).front() == rank.index)
        sent.add(rank.job.clique(rank.layout.devices()).messages_sent());
    });
    CHECK_EQUAL(sent.get(), 2U);
  }
}

TEST(groups_of_some_hosts) {
  const Hosts hosts{"4 x 2", {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}};
  run_on(hosts, "", [](Rank& rank) {
    const std::vector<std::vector<int>> groups = {{0, 1},          {2, 4},       {7, 0, 3},
                                                  {6, 5, 4, 3, 2}, {1, 3, 5, 7}, {0, 2, 4, 6, 1}};
    for (const auto& group : groups) {
      if (std::ranges::find(group, rank.index) == group.end()) continue;
      const auto end = rank.end(group);
      for (const std::size_t count : {5, 30'000}) run_all(*end, DType::kI32, count, 3);
    }
  });
}

// Each algorithm has its own number of messages on four hosts; the sizes are those of an input.
TEST(an_algorithm_up_to_a_size) {
  const Hosts hosts{"4 hosts", {0, 1, 2, 3}, {0, 1, 2, 3}};
  const char* const text =
      "all-reduce=direct:1KiB,all-reduce=halving-doubling:2048,"
      "all-gather=pairwise:1KiB,reduce-scatter=pairwise:1KiB,all-to-all=pairwise:1KiB";
  struct Sized {
    Op op;
    std::size_t count, messages;  // of f32
  };
  const Sized all[] = {
      {Op::kAllReduce, 256, 6},    {Op::kAllReduce, 257, 4},    {Op::kAllReduce, 512, 4},
      {Op::kAllReduce, 513, 2},    {Op::kAllGather, 256, 3},    {Op::kAllGather, 257, 2},
      {Op::kReduceScatter, 64, 3}, {Op::kReduceScatter, 65, 2}, {Op::kAllToAll, 64, 3},
      {Op::kAllToAll, 65, 2},
  };
  run_on(hosts, text, [&](Rank& rank) {
    const auto end = rank.all();
    const Clique& clique = rank.job.clique(rank.layout.devices());
    for (const auto& [op, count, messages] : all) {
      const std::size_t before = clique.messages_sent();
      run_case(*end, case_of(op, DType::kF32, count, 1));
      CHECK_EQUAL(clique.messages_sent() - before, messages);
    }
  });
}

TEST(an_algorithm_that_does_not_exist) {
  for (const char* text :
       {"all-reduce=fast", "all-gather=ring", "reduce", "=", "all-to-all=", "all-reduce=ring:",
        "all-reduce=ring:x", "all-reduce=ring:-1", "all-reduce=ring:1KB", "all-reduce=ring:1.5KiB",
        "all-reduce=ring:99999999999999999999", "all-reduce=ring:99999999999999GiB", ":1KiB"})
    CHECK_CONTAINS(ERROR_OF(prescribed_algorithms(text)), text,
                   "all-reduce=recursive-doubling, halving-doubling, direct, ring",
                   "all-to-all=bruck, pairwise");
  CHECK_EQUAL(prescribed_algorithms("").size(), 0U);
  CHECK_EQUAL(prescribed_algorithms("all-reduce=ring,all-gather=bruck").size(), 2U);
  CHECK_EQUAL(prescribed_algorithms("all-reduce=ring:3MiB")[0].max_bytes, std::size_t{3} << 20);
}

}  // namespace lockstep::testing::crossings
