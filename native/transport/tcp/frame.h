// What goes over a connection between hosts: frames, each with `bytes` bytes behind it. Both ends
// have the same processor family (as the engine's memory has), so numbers are in its order.
#pragma once

#include <cstdint>

namespace lockstep {

struct Frame {
  enum Kind : std::uint32_t {
    kGreeting = 1,  // the first: process `place` speaks to `to`; the job's nonce is in `clique`
    kMessage,       // of a stream: a slot's header, and what is in the slot from `at` on
    kRelease,       // message `number` of a stream has been read
    kAbort,         // the job has failed; the text follows
    kLeave,         // the process's program has ended
    kNote,          // a part of a note of `clique` bytes, which begins `number` bytes into it
    kWelcome,       // to a greeting, by process `place` to process `to`: it is accepted
    kRefusal,       // likewise: it is not; the reason follows
  };
  static constexpr std::uint32_t kVersion = 2;

  std::uint32_t kind = 0;
  std::uint32_t place = 0;
  std::uint64_t clique = 0;
  std::uint32_t number = 0;
  std::uint32_t bytes = 0;  // that follow, a header included
  std::uint32_t at = 0;
  std::uint32_t to = 0;
};
static_assert(sizeof(Frame) == 32);

}  // namespace lockstep
