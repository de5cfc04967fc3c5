// The members of a clique: the decision as a function of what was seen, and the scan of frames that
// hold planted keys.
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>
#include <new>

#include "check.h"
#include "harness.h"
#include "xla_probe/membership.h"
#include "xla_probe/vtables.h"

// What the scan looks for is a name: a class that has XLA's, and one that nearly has it.
namespace xla::cpu {

// A vector's three words behind the pointer to the virtual functions.
struct CpuCliqueKey {
  CpuCliqueKey(std::uintptr_t b, std::uintptr_t e, std::uintptr_t s) : begin(b), end(e), last(s) {}
  virtual ~CpuCliqueKey() = default;
  std::uintptr_t begin, end, last;
};

struct CpuCliqueKeys : CpuCliqueKey {
  using CpuCliqueKey::CpuCliqueKey;
};

}  // namespace xla::cpu

namespace lockstep::testing::memberships {

using xla::cpu::CpuCliqueKey;
using Lists = std::vector<DeviceList>;
using Keys = std::vector<FoundKey>;

const auto kNobody = [](const DeviceList&) { return false; };
const auto* const kAdvice = "Use another library.";

const Place kOne = {1000, 8}, kOther = {1000, 16};

Lists lists_of(const Keys& keys) {
  Lists lists;
  for (const FoundKey& each : keys) lists.push_back(each.devices);
  return lists;
}

DeviceList choose(const Keys& keys, const std::function<bool(const DeviceList&)>& taken = kNobody) {
  return KeyChooser().choose(keys, taken, 4, 0, kAdvice);
}

TEST(one_list_is_the_answer) { CHECK((choose({{{4, 1}, {}}}) == DeviceList{4, 1})); }

TEST(a_list_that_has_its_communicator_is_out) {
  const auto taken = [](const DeviceList& list) { return list == DeviceList{4, 1}; };
  CHECK((choose({{{4, 1}, {}}, {{4, 5}, {}}}, taken) == DeviceList{4, 5}));
  CHECK((choose({{{4, 5}, {}}, {{4, 1}, {}}}, taken) == DeviceList{4, 5}));
}

TEST(two_lists_are_an_error) {
  CHECK_CONTAINS(ERROR_OF(choose({{{4, 5}, {kOne}}, {{4, 6, 7}, {kOther}}})),
                 "starts with device 4", "position 0", "it could be {4,5}, {4,6,7}",
                 "does not guess", kAdvice);
}

TEST(no_list_is_an_error) {
  const auto all = [](const DeviceList&) { return true; };
  CHECK_CONTAINS(ERROR_OF(choose({})), "cannot tell which devices");
  CHECK_CONTAINS(ERROR_OF(choose({{{4, 5, 6}, {}}}, all)), "cannot tell which devices");
}

TEST(of_two_lists_the_one_where_a_key_was_the_only_one) {
  KeyChooser chooser;
  const auto ask = [&](const Keys& keys) { return chooser.choose(keys, kNobody, 4, 0, kAdvice); };
  const Keys two = {{{4, 5}, {kOther}}, {{4, 5, 6}, {kOne}}};
  // Neither tells which of its places is that of the live key.
  CHECK((ask({{{4, 1}, {kOne, kOther}}}) == DeviceList{4, 1}));
  CHECK((ask({{{4, 1}, {Place{}}}}) == DeviceList{4, 1}));
  CHECK_CONTAINS(ERROR_OF(ask(two)), "cannot tell which devices");
  CHECK((ask({{{4, 1}, {kOne}}}) == DeviceList{4, 1}));
  CHECK((ask(two) == DeviceList{4, 5, 6}));
  CHECK((ask({{{4, 5}, {kOther, kOne}}, {{4, 6}, {kOther}}}) == DeviceList{4, 5}));
  CHECK_CONTAINS(ERROR_OF(ask({{{4, 5}, {kOther}}, {{4, 6}, {Place{}}}})), "{4,5}, {4,6}");
  CHECK((ask({{{4, 8}, {kOther}}}) == DeviceList{4, 8}));
  CHECK_CONTAINS(ERROR_OF(ask(two)), "{4,5}, {4,5,6}");  // both now
}

// As jaxlib's are found, here those of this program.
VirtualTables own_tables() {
  find_virtual_tables("/proc/self/exe");
  return virtual_tables();
}

// Asks as process 0 of two processes with two devices each: 0, 1, 2048, 2049. Where the table of
// the key's class is known, and where it is not.
void with_job(const std::function<void(Job&)>& body) {
  for (const VirtualTables& tables : {own_tables(), VirtualTables{}}) {
    set_virtual_tables(tables);
    run_healthy(layout("2x2"), {}, [&](Rank& rank) {
      if (rank.index == 0) body(rank.job);
    });
  }
}

// Keeps a local variable where it is: in memory, in this frame.
void keep(const void* variable) { asm volatile("" : : "g"(variable) : "memory"); }

// A key in the caller's frame, as XLA's is. The words come inverted and everything is wiped out
// afterwards, so that the next scan of the same test finds no copy.
template <typename Key>
[[gnu::noinline]] Keys find_with_words(const Job& job, std::uintptr_t begin, std::uintptr_t end,
                                       std::uintptr_t last, int color, int key, int id_bytes) {
  alignas(Key) std::byte frame[sizeof(Key)];
  auto* planted = new (frame) Key(~begin, ~end, ~last);
  keep(planted);
  Keys seen = keys_on_stack(job, color, key, id_bytes);
  planted->~Key();
  std::memset(frame, 0, sizeof(frame));
  keep(frame);
  return seen;
}

template <typename Key>
Lists scan_with_words(const Job& job, std::uintptr_t begin, std::uintptr_t end, std::uintptr_t last,
                      int color, int key, int id_bytes) {
  return lists_of(find_with_words<Key>(job, begin, end, last, color, key, id_bytes));
}

template <typename Key = CpuCliqueKey, typename Id>
Keys find_with(const Job& job, int color, int key, const std::vector<Id>& ids) {
  const auto at = ~reinterpret_cast<std::uintptr_t>(ids.data());
  const std::uintptr_t bytes = ids.size() * sizeof(Id);
  return find_with_words<Key>(job, at, at - bytes, at - bytes, color, key, sizeof(Id));
}

template <typename Key = CpuCliqueKey, typename Id>
Lists scan_with(const Job& job, int color, int key, const std::vector<Id>& ids) {
  return lists_of(find_with<Key>(job, color, key, ids));
}

using Narrow = std::vector<std::int32_t>;
using Wide = std::vector<std::int64_t>;

DeviceList ids_of(const Wide& ids) { return {ids.begin(), ids.end()}; }

TEST(keys_in_a_frame) {
  with_job([](Job& job) {
    CHECK((scan_with(job, 0, 1, Narrow{0, 1, 2048}) == Lists{{0, 1, 2048}}));
    CHECK((scan_with(job, 0, 3, Wide{0, 2048, 2049, 1}) == Lists{{0, 2048, 2049, 1}}));
    CHECK((scan_with(job, 1, 0, Wide{1}) == Lists{{1}}));
  });
}

TEST(no_key_is_read_where_the_width_of_an_id_is_not_known) {
  with_job([](Job& job) {
    static const std::int32_t ids[] = {0, 1, 2048};
    const auto at = ~reinterpret_cast<std::uintptr_t>(ids);
    CHECK(
        (scan_with_words<CpuCliqueKey>(job, at, at - 12, at - 12, 0, 1, 4) == Lists{{0, 1, 2048}}));
    CHECK(scan_with_words<CpuCliqueKey>(job, at, at - 12, at - 12, 0, 1, 0).empty());
  });
}

TEST(the_table_of_a_class_is_found) {
  const CpuCliqueKey key(0, 0, 0);
  std::uintptr_t first = 0;
  std::memcpy(&first, static_cast<const void*>(&key), sizeof(first));
  CHECK_EQUAL(own_tables().clique_key, first);
  set_virtual_tables({});
  find_virtual_tables("/no/such/library");
  CHECK_EQUAL(virtual_tables().clique_key, 0u);
}

// Only where the table is known: what is pointed to would have to be taken for a key by its looks.
TEST(a_key_on_the_heap_to_which_a_frame_points) {
  with_job([](Job& job) {
    static const std::int32_t ids[] = {0, 1, 2048}, others[] = {0, 2049};
    const auto words = [](const auto& list) {
      const auto at = reinterpret_cast<std::uintptr_t>(list);
      return std::array{at, at + sizeof(list), at + sizeof(list)};
    };
    const auto [begin, end, last] = words(ids);
    const auto held = std::make_unique<CpuCliqueKey>(begin, end, last);
    const CpuCliqueKey* volatile pointer = held.get();
    keep(const_cast<const CpuCliqueKey**>(&pointer));
    const bool known = virtual_tables().clique_key != 0;
    CHECK((lists_of(keys_on_stack(job, 0, 1, 4)) == (known ? Lists{{0, 1, 2048}} : Lists{})));
    // One in a frame is the live one.
    const auto [other, other_end, other_last] = words(others);
    CHECK((scan_with_words<CpuCliqueKey>(job, ~other, ~other_end, ~other_last, 0, 0, 4) ==
           Lists{{0, 2049}}));
    pointer = nullptr;
    keep(const_cast<const CpuCliqueKey**>(&pointer));
  });
}

TEST(what_is_not_a_key) {
  with_job([](Job& job) {
    const Narrow list = {0, 1, 2048};
    keep(&list);
    CHECK(scan_with<xla::cpu::CpuCliqueKeys>(job, 0, 1, list).empty());
    CHECK(keys_on_stack(job, 0, 1, 4).empty());
  });
}

TEST(keys_that_cannot_be_the_clique) {
  with_job([](Job& job) {
    // Another first device; too short for the position; a device of the other process at the
    // position; a device twice; a device that no process has; ids that are no ids; nothing.
    for (const Wide& ids : {Wide{1, 0}, Wide{0}, Wide{0, 2048}, Wide{0, 1, 1}, Wide{0, 1, 77},
                            Wide{0, 1, -1}, Wide{0, 1, std::int64_t{1} << 40}, Wide{}})
      CHECK(scan_with(job, 0, 1, ids).empty());
    CHECK(scan_with(job, 0, -1, Wide{0, 1}).empty());
    CHECK(scan_with(job, -1, 0, Wide{0, 1}).empty());
  });
}

// The memory of a key that is left over may be gone or used for something else.
TEST(words_that_point_nowhere) {
  with_job([](Job& job) {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    const std::int64_t ids[] = {0, 1, 2048};
    std::memcpy(page, ids, sizeof(ids));
    const auto at = ~reinterpret_cast<std::uintptr_t>(page);  // inverted: at - 24 is 24 bytes on
    const auto scan = [&](std::uintptr_t begin, std::uintptr_t end, std::uintptr_t last) {
      return scan_with_words<CpuCliqueKey>(job, begin, end, last, 0, 0, 8);
    };
    CHECK((scan(at, at - 24, at - 24) == Lists{{0, 1, 2048}}));
    CHECK(scan(at - 1, at - 25, at - 25).empty());
    CHECK(scan(at - 24, at, at - 24).empty());
    CHECK(scan(at, at - 24, at - 16).empty());
    CHECK(scan(at, at - (std::uintptr_t{1} << 40), at - (std::uintptr_t{1} << 40)).empty());
    munmap(page, 4096);
    CHECK(scan(at, at - 24, at - 24).empty());
  });
}

// A first word that leads to no type: unmapped memory, the last word of an address space, text.
TEST(tables_that_point_nowhere) {
  with_job([](Job& job) {
    static const std::int64_t ids[] = {0, 1};
    const auto at = reinterpret_cast<std::uintptr_t>(ids);
    for (const std::uintptr_t table : {std::uintptr_t{8192}, ~std::uintptr_t{7},
                                       reinterpret_cast<std::uintptr_t>("xla::cpu"), at, at + 8}) {
      const std::uintptr_t frame[] = {table, at, at + 16, at + 16};
      keep(frame);
      CHECK(keys_on_stack(job, 0, 1, 8).empty());
    }
  });
}

TEST(a_key_left_behind_by_an_earlier_call) {
  with_job([](Job& job) {
    // Its memory was freed and now holds the live list, of which it shows the first part.
    const Wide ids = {0, 2048, 1};
    const auto at = reinterpret_cast<std::uintptr_t>(ids.data());
    const CpuCliqueKey stale(at, at + 16, at + 16);
    const auto ask = [&](KeyChooser& chooser, int color, const Keys& keys) {
      return chooser.choose(keys, kNobody, color, 0, kAdvice);
    };
    keep(&stale);
    const Keys seen = find_with(job, 0, 0, ids), only = find_with(job, 1, 0, Wide{1, 2049});
    keep(&stale);
    CHECK((lists_of(seen) == Lists{ids_of(ids), {0, 2048}}));
    const auto asked_before = [](const DeviceList& list) { return list == DeviceList{0, 2048}; };
    KeyChooser chooser;
    CHECK_CONTAINS(ERROR_OF(ask(chooser, 0, seen)), "{0,2048,1}, {0,2048}");
    CHECK((KeyChooser().choose(seen, asked_before, 0, 0, kAdvice) == ids_of(ids)));
    CHECK((ask(chooser, 1, only) == DeviceList{1, 2049}));
    CHECK((ask(chooser, 0, seen) == ids_of(ids)));
  });
}

}  // namespace lockstep::testing::memberships
