// The look for XLA's numbers among the words above a frame.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "api/mpitrampoline/state.h"
#include "captured_stderr.h"
#include "check.h"
#include "xla_probe/origin.h"
#include "xla_probe/vtables.h"

// Named as XLA's class is, for it is found by its name.
namespace xla::cpu {
struct CpuCollectives {
  struct Executor {
    Executor(std::int64_t execution, std::int64_t channel)
        : execution(execution), channel(channel) {}
    virtual ~Executor() = default;
    const std::int64_t execution;
    const void* devices[3] = {this, this + 1, this + 1};
    std::int32_t participants = 2, kind = 0;
    const std::int64_t channel;
  };
};
}  // namespace xla::cpu

namespace lockstep::testing::origins {

using xla::cpu::CpuCollectives;

constexpr std::size_t kObject = sizeof(CpuCollectives::Executor) / sizeof(std::uintptr_t);
constexpr std::size_t kLast = 160 - kObject;

// Words like those of a stack: the object's table appears, but no object.
struct Stack {
  std::array<std::uintptr_t, 200> words{};

  void put(std::size_t at, const CpuCollectives::Executor& object) {
    std::memcpy(static_cast<void*>(&words[at]), static_cast<const void*>(&object), sizeof(object));
  }
  Origin look() const { return origin_of_call(words.data()); }
};

// What the first calls have seen is forgotten.
void start_anew() {
  set_virtual_tables({});
  restart_search_for_origins();
}

// The kind of call that comes first need not show it.
TEST(an_executor_that_the_first_calls_do_not_show) {
  const CpuCollectives::Executor object(77, 3);
  start_anew();
  const Stack without;
  Stack with;
  with.put(40, object);
  for (int i = 0; i < 50; ++i) CHECK(!without.look().known());
  CHECK_EQUAL(with.look().execution, 77);
  start_anew();
  for (int i = 0; i < 1000; ++i) CHECK(!without.look().known());
  CHECK(!with.look().known());
  // Found at the start, it is known for good.
  find_virtual_tables("/proc/self/exe");
  CHECK_EQUAL(with.look().execution, 77);
}

TEST(an_executor_is_found_wherever_it_lies) {
  start_anew();
  const CpuCollectives::Executor object(77, 3);
  for (std::size_t at = 0; at <= kLast; ++at) {
    Stack stack;
    stack.put(at, object);
    const Origin found = stack.look();
    CHECK_EQUAL(found.execution, 77);
    CHECK_EQUAL(found.channel, 3);
  }
  Stack beyond;
  beyond.put(kLast + 1, object);
  CHECK(!beyond.look().known());
}

TEST(two_executors_that_differ_say_nothing) {
  const CpuCollectives::Executor object(77, 3), same(77, 3), other(78, 3), channel(77, 4);
  for (std::size_t at = 20; at < 60; ++at) {
    Stack stack;
    stack.put(5, object);
    stack.put(at, same);
    CHECK_EQUAL(stack.look().execution, 77);
    stack.put(at, other);
    CHECK(!stack.look().known());
    stack.put(at, channel);
    CHECK(!stack.look().known());
  }
}

TEST(words_that_are_like_an_executor_are_not_taken_for_one) {
  const CpuCollectives::Executor object(77, 3);
  Stack stack;
  stack.put(50, object);
  const std::uintptr_t table = stack.words[50];
  stack.words[10] = table;  // the table alone
  stack.words[12] = table ^ std::uintptr_t{1} << 40;
  stack.words[14] = table << 32 | 7;
  CHECK_EQUAL(stack.look().execution, 77);
  stack.words[50] ^= std::uintptr_t{1} << 33;
  CHECK(!stack.look().known());
}

// What a process says whose calls show nothing, `times` times; `known_at`: but for that one.
std::string said_of_origins(int process, int times, int known_at) {
  return in_child([&] {
    const Stderr said;
    const Descriptor arena(lockstep_create_arena(kNonce));
    Given given(process, "", arena.get(), -1);
    given.options.addresses = nullptr;  // all on one host
    CHECK_EQUAL(lockstep_start(&given.options), 0);
    for (int i = 0; i < times; ++i) Engine::instance().note_origin(i == known_at);
    return said.text();
  });
}

TEST(calls_that_never_show_a_program_are_reported_once) {
  const std::string said = said_of_origins(0, 5000, -1);
  CHECK_CONTAINS(said, "lockstep: this jaxlib does not show which program a collective belongs to");
  CHECK_EQUAL(std::ranges::count(said, '\n'), 1);
  CHECK_EQUAL(said_of_origins(0, 20, -1), "");    // they may yet
  CHECK_EQUAL(said_of_origins(0, 5000, 30), "");  // and one has
  CHECK_EQUAL(said_of_origins(1, 5000, -1), "");  // process 0 says it for all
}

}  // namespace lockstep::testing::origins
