// The shared memory: what it refuses, what a limit does to it, and the text of a failed job.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "harness.h"
#include "hosts.h"
#include "model.h"

namespace lockstep::testing::segments {

TEST(only_the_file_of_this_job) {
  const Descriptor arena = Arena::create(kNonce);
  const Arena mapped(arena.get(), kNonce);
  CHECK_CONTAINS(ERROR_OF(Arena(arena.get(), kNonce + 1)), "is not this job's");
  const Descriptor other(memfd_create("other", MFD_CLOEXEC));
  CHECK_CONTAINS(ERROR_OF(Arena(other.get(), kNonce)), "has another size");
  CHECK_EQUAL(ftruncate(other.get(), Arena::kSize), 0);
  CHECK_CONTAINS(ERROR_OF(Arena(other.get(), kNonce)), "is not this job's");
  CHECK_CONTAINS(ERROR_OF(Arena(-1, kNonce)), "cannot keep the shared memory open");
}

TEST(regions_are_zero_apart_and_seen_by_all) {
  const Descriptor file = Arena::create(kNonce);
  Arena a(file.get(), kNonce), b(file.get(), kNonce);
  const std::uint64_t first = a.allocate(5000), second = b.allocate(1);
  CHECK(second >= first + 5000);
  CHECK_EQUAL(first % 4096, 0U);
  CHECK_EQUAL(second % 4096, 0U);
  for (std::size_t i = 0; i < 5000; ++i) CHECK(a.at(first)[i] == std::byte{0});
  a.at(first)[4999] = std::byte{7};
  CHECK(b.at(first)[4999] == std::byte{7});
}

TEST(an_arena_that_is_used_up) {
  Arena arena = new_arena();
  CHECK_CONTAINS(ERROR_OF(arena.allocate(Arena::kSize)), "used up",
                 std::to_string(Arena::kSize >> 30) + " GiB", "too many different device groups");
}

TEST(a_limit_on_file_sizes) {
  // Python ignores the signal, and so does every program that the engine is loaded into.
  const std::string text = in_child([] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    return ERROR_OF(Arena::create(kNonce));
  });
  CHECK_CONTAINS(text, "cannot size the shared memory: File too large", "lockstep doctor");
}

// A read-only descriptor of the arena's file: what may not be mapped is an error with a text.
TEST(memory_that_cannot_be_mapped) {
  const Descriptor file = Arena::create(kNonce);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const Descriptor read_only(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  CHECK_CONTAINS(ERROR_OF(Arena(read_only.get(), kNonce)), "cannot map the shared memory",
                 "Permission denied");
}

// Sanitizers reserve far more address space than this allows.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(a_limit_on_address_space) {
  const std::string text = in_child([] {
    const Descriptor fd = Arena::create(kNonce);
    const rlimit limit{std::size_t{4} << 30, std::size_t{4} << 30};
    setrlimit(RLIMIT_AS, &limit);
    return ERROR_OF(Arena(fd.get(), kNonce));
  });
  CHECK_CONTAINS(text, "ulimit -v", "Cannot allocate memory");
}
#endif

std::size_t resident_pages(const Arena& arena) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((arena.header().next.load() + page - 1) / page);
  CHECK_EQUAL(mincore(arena.at(0), pages.size() * page, pages.data()), 0);
  return static_cast<std::size_t>(std::ranges::count_if(pages, [](auto one) { return one & 1; }));
}

TEST(a_claim_takes_memory_where_it_is_placed) {
  Arena arena = new_arena();
  const std::size_t page = Arena::whole_pages(1), before = resident_pages(arena);
  const std::uint64_t offset = arena.claim(8 * page);
  CHECK_EQUAL(resident_pages(arena), before);
  arena.place(offset + 2 * page, 3 * page - 5);
  CHECK_EQUAL(resident_pages(arena), before + 3);
}

// The kernel gives a page to the NUMA node of the process that places it: here each process finds
// that those of its own rings were not placed by the first.
TEST(each_process_places_its_own_rings) {
  std::atomic<int> turn{0};
  std::atomic<std::size_t> placed[4] = {};
  run_healthy(layout("4x1"), {}, [&](Rank& rank) {
    eventually([&] { return turn.load() == rank.index; }, "the process before this one");
    const std::size_t before = resident_pages(rank.job.arena());
    rank.all();
    placed[rank.index] = resident_pages(rank.job.arena()) - before;
    ++turn;
  });
  const std::size_t rings = 2 * BroadcastRing::footprint(4, 256 << 10);
  for (const auto& pages : placed) {
    CHECK(pages * Arena::whole_pages(1) >= rings);
    CHECK(pages * Arena::whole_pages(1) < 2 * rings);
  }
}

// The first process makes a group's entry in the directory; without memory all its members fail.
TEST(a_group_without_memory) {
  for (const Outcome& outcome : run_job(layout("2x2"), {}, [](Rank& rank) {
         rank.job.arena().header().next.store(Arena::kSize);
         rank.all();
       }))
    CHECK_CONTAINS(outcome.error, "used up");
}

TEST(a_permute_without_memory) {
  for (const Outcome& outcome : run_job(layout("2x1"), {}, [](Rank& rank) {
         const auto end = rank.all();
         run_case(*end, {.count = 1});
         rank.job.arena().header().next.store(Arena::kSize);
         run_permute(*end, {{0, 1}, {1, 0}}, 100, 1);
       }))
    CHECK_CONTAINS(outcome.error, "used up");
}

TEST(the_first_text_of_a_failure_stays) {
  const Descriptor file = Arena::create(kNonce);
  Arena a(file.get(), kNonce), b(file.get(), kNonce);
  CHECK(!b.aborted());
  a.abort("first");
  b.abort("second");
  CHECK(b.aborted());
  CHECK_EQUAL(a.abort_text(), "first");
  CHECK_EQUAL(b.abort_text(), "first");
}

// Threads use the arena while a listener waits for other hosts.
TEST(a_listener_that_waits_holds_no_lock) {
  Arena arena = new_arena();
  std::promise<void> called, returns;
  std::atomic<bool> has_returned{false};
  const std::size_t waits = arena.add_abort_listener([&](std::string_view text) {
    CHECK_EQUAL(text, "text");
    called.set_value();
    returns.get_future().wait_for(std::chrono::seconds(20));
    has_returned = true;
  });
  int later = 0;
  arena.add_abort_listener([&](std::string_view) { ++later; });
  auto aborting = in_background([&] { arena.abort("text"); });
  CHECK(called.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  auto other = in_background([&] {
    arena.remove_abort_listener(arena.add_abort_listener([](std::string_view) {}));
    return has_returned.load();
  });
  CHECK(!other.get());
  // What the listener uses stays until it has returned.
  auto removing = in_background([&] {
    arena.remove_abort_listener(waits);
    return has_returned.load();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  returns.set_value();
  CHECK(removing.get());
  aborting.get();
  CHECK_EQUAL(later, 1);
}

TEST(a_process_that_died_while_it_wrote_the_text) {
  Arena arena = new_arena();
  arena.header().abort_state.store(1);
  CHECK_CONTAINS(arena.abort_text(), "another process failed and left no text");
}

}  // namespace lockstep::testing::segments
