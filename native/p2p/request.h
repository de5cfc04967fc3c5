// One send or receive of a rank, from the call that starts it to the wait that ends it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/origin.h"

namespace lockstep {

struct Request {
  enum Kind { kSend, kReceive } kind;
  int peer;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  Origin origin;
  std::size_t moved = 0;
  std::size_t posted = 0;  // bytes of a receive whose place the transport has been told
  bool started = false;
  std::uint32_t offered = 0;  // the slot that holds the address of a started send between processes
  // Within a process the receiver completes the sender's request.
  std::atomic<bool> complete{false};
};

}  // namespace lockstep
