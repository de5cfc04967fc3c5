// Which program a collective belongs to, and which place in it: xla_probe/origin.h finds both out.
#pragma once

#include <cstdint>

namespace lockstep {

struct Origin {
  std::int64_t execution = 0;
  std::int64_t channel = 0;
  std::uint32_t site = 0;    // of the user's program; 0 unless --strict asks for it
  std::uint32_t unused = 0;  // no byte that was not set goes to another process

  // Unknown where the object was not found: such an origin agrees with every other.
  bool known() const { return execution != 0 || channel != 0; }
  bool agrees(const Origin& other) const {
    const bool same_place =
        !known() || !other.known() || (execution == other.execution && channel == other.channel);
    return same_place && !other_line(other);
  }
  bool other_line(const Origin& other) const {
    return site != 0 && other.site != 0 && site != other.site;
  }
};

}  // namespace lockstep
