// Who is in a clique: the decision as a function of what was seen, and the scan of frames that hold
// planted lists.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "check.h"
#include "error.h"
#include "harness.h"
#include "membership.h"

namespace lockstep::testing {
namespace {

const auto kNobody = [](const DeviceList&) { return false; };

TEST(one_list_is_the_answer) {
  CHECK((decide_members({{}, {{0, 1}}}, kNobody, 0, 1) == DeviceList{0, 1}));
  CHECK((decide_members({{{0, 1}}, {{0, 1}}}, kNobody, 0, 1) == DeviceList{0, 1}));
}

TEST(a_key_counts_more_than_a_list) {
  CHECK((decide_members({{{0, 1}}, {{0, 1}, {0, 5}}}, kNobody, 0, 0) == DeviceList{0, 1}));
}

TEST(a_list_that_has_its_communicator_is_out) {
  const auto taken = [](const DeviceList& list) { return list == DeviceList{0, 1}; };
  CHECK((decide_members({{}, {{0, 1}, {0, 5}}}, taken, 0, 0) == DeviceList{0, 5}));
  CHECK((decide_members({{{0, 5}, {0, 1}}, {}}, taken, 0, 0) == DeviceList{0, 5}));
}

TEST(two_lists_are_an_error) {
  const std::string text = ERROR_OF(decide_members({{}, {{4, 5}, {4, 6, 7}}}, kNobody, 4, 0));
  CHECK_CONTAINS(text, "starts with device 4", "position 0", "it could be {4,5}, {4,6,7}",
                 "does not guess", "--collectives gloo");
  CHECK_CONTAINS(ERROR_OF(decide_members({{{4, 5}, {4, 6}}, {{4, 5}}}, kNobody, 4, 0)),
                 "{4,5}, {4,6}");
}

TEST(no_list_is_an_error) {
  const auto all = [](const DeviceList&) { return true; };
  CHECK_CONTAINS(ERROR_OF(decide_members({}, kNobody, 4, 2)), "cannot tell which devices");
  CHECK_CONTAINS(ERROR_OF(decide_members({{}, {{4, 5, 6}}}, all, 4, 2)), "cannot tell");
}

// A world of process 0 in a job of two processes with two devices each: 0, 1, 2048, 2049.
void with_world(const std::function<void(World&)>& body) {
  run_healthy(layout("2x2"), {}, [&](Rank& rank) {
    if (rank.index == 0) body(rank.world);
  });
}

// Keeps a local variable where it is: in memory, in this frame.
void keep(const void* variable) { asm volatile("" : : "g"(variable) : "memory"); }

bool holds(const std::vector<DeviceList>& lists, const DeviceList& list) {
  return std::ranges::find(lists, list) != lists.end();
}

// The list lives in the caller's frame, as XLA's does.
template <typename List>
[[gnu::noinline]] Sightings scan_with(const World& world, int color, int key, const List& given) {
  List planted = given;
  keep(&planted);
  Sightings seen = scan_stack(world, color, key);
  keep(&planted);
  return seen;
}

TEST(vectors_in_a_frame) {
  with_world([](World& world) {
    const std::vector<std::int32_t> narrow = {0, 1, 2048};
    const std::vector<std::int64_t> wide = {0, 2048, 2049, 1};
    CHECK(holds(scan_with(world, 0, 1, narrow).lists, {0, 1, 2048}));
    CHECK(holds(scan_with(world, 0, 3, wide).lists, {0, 2048, 2049, 1}));
    CHECK(holds(scan_with(world, 1, 0, std::vector<std::int64_t>{1}).lists, {1}));
  });
}

// What XLA keeps its communicators by: an object with virtual functions, the ids behind.
struct Key {
  explicit Key(std::vector<std::int64_t> given) : ids(std::move(given)) {}
  Key(const Key&) = default;
  virtual ~Key() = default;
  virtual int kind() const { return 1; }
  std::vector<std::int64_t> ids;
};

TEST(keys_in_a_frame) {
  with_world([](World& world) {
    const Sightings seen = scan_with(world, 0, 1, Key({0, 1, 2049}));
    CHECK(holds(seen.keys, {0, 1, 2049}));
    CHECK(holds(seen.lists, {0, 1, 2049}));
    CHECK((decide_members(seen, kNobody, 0, 1) == DeviceList{0, 1, 2049}));
  });
}

TEST(lists_that_cannot_be_the_clique) {
  with_world([](World& world) {
    using Ids = std::vector<std::int64_t>;
    // Another first device; too short for the position; a device of the other process at the
    // position; a device twice; a device that nobody has; ids that are no ids.
    for (const Ids& ids : {Ids{1, 0}, Ids{0}, Ids{0, 2048}, Ids{0, 1, 1}, Ids{0, 1, 77},
                           Ids{0, 1, -1}, Ids{0, 1, std::int64_t{1} << 40}})
      CHECK(scan_with(world, 0, 1, ids).lists.empty());
    CHECK(scan_with(world, 0, -1, Ids{0, 1}).lists.empty());
    CHECK(scan_with(world, -1, 0, Ids{0, 1}).lists.empty());
  });
}

// Three words that look like a vector. The memory behind them may be gone.
struct Words {
  std::uintptr_t begin, end, storage;
};

// The words are handed over inverted and wiped out afterwards: no other copy of them is in a frame.
[[gnu::noinline]] Sightings scan_with_words(const World& world, Words inverted) {
  Words planted{~inverted.begin, ~inverted.end, ~inverted.storage};
  keep(&planted);
  Sightings seen = scan_stack(world, 0, 0);
  planted = {};
  keep(&planted);
  return seen;
}

TEST(words_that_point_nowhere) {
  with_world([](World& world) {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    const std::int64_t ids[] = {0, 1, 2048};
    std::memcpy(page, ids, sizeof(ids));
    const auto at = ~reinterpret_cast<std::uintptr_t>(page);  // inverted: at - 24 is 24 bytes on
    CHECK(holds(scan_with_words(world, {at, at - 24, at - 24}).lists, {0, 1, 2048}));
    for (const Words& words :
         {Words{at - 1, at - 25, at - 25}, Words{at, at - 23, at - 24}, Words{at - 24, at, at - 24},
          Words{at, at - 24, at - 16}, Words{at, at - 24, at - (std::uintptr_t{1} << 40)},
          Words{~std::uintptr_t{8}, ~std::uintptr_t{32}, ~std::uintptr_t{32}}})
      CHECK(scan_with_words(world, words).lists.empty());
    munmap(page, 4096);
    CHECK(scan_with_words(world, {at, at - 24, at - 24}).lists.empty());
  });
}

// A call that has returned may leave its list in frames below, and its ids in memory that was not
// used again.
TEST(a_list_left_behind_by_an_earlier_call) {
  with_world([](World& world) {
    static const std::int64_t old_ids[] = {0, 2048, 1};
    const auto at = reinterpret_cast<std::uintptr_t>(old_ids);
    const Words stale{at, at + 24, at + 24};
    keep(&stale);
    const Sightings seen = scan_with(world, 0, 0, Key({0, 1}));
    keep(&stale);
    CHECK(holds(seen.lists, {0, 2048, 1}));
    CHECK(!holds(seen.keys, {0, 2048, 1}));
    CHECK((decide_members(seen, kNobody, 0, 0) == DeviceList{0, 1}));
    const auto asked_before = [](const DeviceList& list) { return list == DeviceList{0, 2048, 1}; };
    CHECK((decide_members({{}, seen.lists}, asked_before, 0, 0) == DeviceList{0, 1}));
  });
}

}  // namespace
}  // namespace lockstep::testing
