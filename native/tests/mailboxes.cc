// Messages between ranks: every shape of a collective-permute, and the order of a pair's messages.
#include <cstring>

#include "check.h"
#include "harness.h"
#include "model.h"

namespace lockstep::testing::mailboxes {

constexpr std::size_t kSizes[] = {0, 1, 7, 4096, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 300'001};

void permute_all_sizes(const std::function<std::vector<Edge>(int size)>& edges) {
  for (const Harness harness : kAll)
    for (const Layout& layout : all_layouts())
      run_healthy(layout, {.harness = harness}, [&](Rank& rank) {
        const auto end = rank.all();
        std::uint32_t seed = 0;
        for (const std::size_t bytes : kSizes) run_permute(*end, edges(rank.size()), bytes, ++seed);
      });
}

TEST(rings) {
  permute_all_sizes([](int size) { return ring(size, 1); });
  permute_all_sizes([](int size) { return ring(size, size - 1); });
}

TEST(one_to_all) {
  permute_all_sizes([](int size) {
    std::vector<Edge> edges;
    for (int target = 0; target < size; ++target) edges.push_back({size / 2, target});
    return edges;
  });
}

TEST(two_sources_with_several_targets) {
  permute_all_sizes([](int size) {
    std::vector<Edge> edges;
    for (int target = 0; target < size; ++target)
      edges.push_back({target % 2 == 0 ? size - 1 : 0, target});
    return edges;
  });
}

TEST(ranks_without_source_or_target) {
  permute_all_sizes([](int size) {
    std::vector<Edge> edges;
    for (int rank = 0; rank + 1 < size; rank += 2) edges.push_back({rank, rank + 1});
    return edges;
  });
}

// Between hosts a message is cut into four parts, or into more of the longest.
TEST(several_megabytes) {
  for (const Harness harness : {Harness::kThreads, Harness::kHosts})
    for (const char* name : {"2x1", "2x2", "backwards"})
      run_healthy(layout(name), {.harness = harness}, [](Rank& rank) {
        const auto end = rank.all();
        for (const std::size_t bytes : {(1 << 20) + 3, (5 << 20) + 3})
          run_permute(*end, ring(rank.size(), 1), bytes, 1);
      });
}

// Rank 0 sends several messages before it waits for any, rank 1 asks for all before it waits.
void check_order(Rank& rank, std::size_t bytes, bool backwards) {
  constexpr std::uint32_t kMessages = 5;
  if (rank.index > 1) return;
  const auto end = rank.all();
  std::vector<Buffer> buffers;
  std::vector<Request*> requests;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    buffers.push_back(rank.index == 0 ? message(i, 0, bytes) : Buffer(bytes));
    if (rank.index == 0) requests.push_back(end->send(1, buffers[i].data(), bytes));
    if (rank.index == 1) requests.push_back(end->receive(0, buffers[i].data(), bytes));
  }
  if (backwards) std::reverse(requests.begin(), requests.end());
  for (Request* request : requests) end->wait(request);
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    buffers[i].check_guards();
    CHECK(std::memcmp(buffers[i].data(), message(i, 0, bytes).data(), bytes) == 0);
  }
}

TEST(messages_of_a_pair_stay_in_order) {
  for (const Harness harness : kAll)
    for (const char* name : {"2x1", "1x4"})
      for (const std::size_t bytes : {100, 200'000})
        for (const bool backwards : {false, true})
          for (int repeat = 0; repeat < rounds(10, 2); ++repeat)
            run_healthy(layout(name), {.harness = harness},
                        [&](Rank& rank) { check_order(rank, bytes, backwards); });
}

TEST(a_rank_that_does_not_exist) {
  run_healthy(layout("1x1"), {}, [](Rank& rank) {
    const auto end = rank.all();
    std::byte byte{};
    CHECK_CONTAINS(ERROR_OF(end->send(3, &byte, 1)), "collective-permute names rank 3");
    CHECK_CONTAINS(ERROR_OF(end->receive(-1, &byte, 1)), "collective-permute names rank -1");
  });
}

}  // namespace lockstep::testing::mailboxes
