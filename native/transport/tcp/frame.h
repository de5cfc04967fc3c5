// What goes over a connection between hosts: frames, each followed by `bytes` bytes. Both ends have
// the same processor family (as the engine's memory has), so numbers are in its byte order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct Frame {
  enum Kind : std::uint32_t {
    kGreeting = 1,  // the first: process `index` speaks to `to`; the job's nonce is in `clique`;
                    // the companion's greeting follows, if there is one
    kMessage,       // of a channel: a slot's header, and what follows it in the slot; or, on a
                    // further connection, one stripe of the latter (see stripes.h)
    kRelease,       // message `number` of a channel has been read
    kAbort,         // the job has failed; the text follows
    kLeave,    // the process's program has ended, on each of its connections; how many messages
               // the companion has sent is in `clique`
    kControl,  // the part of a control message of `clique` bytes that begins at `number`
    kWelcome,  // accepts a greeting: from process `index` to process `to`
    kRefusal,  // refuses a greeting; the reason follows
  };
  static constexpr std::uint32_t kVersion = 8;
  // What may follow a frame of these kinds, in bytes.
  static constexpr std::size_t kMaxAbortText = 1000, kMaxControlPart = std::size_t{256} << 10;
  // A bit of the number of a greeting, beside the version: what follows the answer is not
  // encrypted.
  static constexpr std::uint32_t kUnencrypted = 1u << 31;
  // A bit of the number of a greeting or a welcome: the program of the process has ended. If it has
  // not connected, it has sent nothing to the other one.
  static constexpr std::uint32_t kHasLeft = 1u << 30;

  std::uint32_t kind = 0;
  std::uint32_t index = 0;  // of the channel's ring
  std::uint64_t clique = 0;
  std::uint32_t number = 0;
  std::uint32_t bytes = 0;  // that follow, a header included
  std::uint32_t to = 0;
  // A greeting has its `connection_number` here, an answer the `machine_number`, and a message how
  // many bytes of its payload other connections carry.
  std::uint32_t extra = 0;

  // Which of the connections of its process a greeting is for, from 0 on, and how many there are.
  static constexpr std::uint32_t connection_number(std::uint32_t which, std::uint32_t count) {
    return which | (count - 1) << 16;
  }
  std::uint32_t connection() const { return extra & 0xffff; }
  std::uint32_t connections() const { return (extra >> 16) + 1; }
};
static_assert(sizeof(Frame) == 32);

}  // namespace lockstep
