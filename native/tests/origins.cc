// The look for XLA's numbers among the words above a frame.
#include <array>
#include <cstring>

#include "check.h"
#include "origin.h"

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

namespace lockstep::testing {
namespace {

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

TEST(an_executor_is_found_wherever_it_lies) {
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

}  // namespace
}  // namespace lockstep::testing
