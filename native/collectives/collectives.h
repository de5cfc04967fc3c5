// The collectives, each run by one thread a process: the leader, with the calls of all ranks of its
// process (in rank order). Ranks of other processes are reached through the clique's lanes.
//
// Shape shared by all: the buffers are cut into chunks that fit one message; chunk c is sent while
// chunk c - 1 is being received, so that no process waits for a message which is not already on
// its way. Inputs may be reused as soon as the function returns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "core/clique.h"
#include "core/types.h"

namespace lockstep {

using Calls = std::span<const Call* const>;

void run_collective(Clique& clique, Calls calls, std::uint32_t sequence);

void all_reduce(Exchange& exchange, Calls calls);
void all_gather(Exchange& exchange, Calls calls);
void reduce_scatter(Exchange& exchange, Calls calls);
void all_to_all(Exchange& exchange, Calls calls);

// How many elements of `width` bytes each of `parts` gets in one message, a multiple of a cache
// line; throws Error when not even one fits.
std::size_t elements_per_part(const Clique& clique, std::size_t parts, std::size_t width);

// How far apart parts of `bytes` bytes stand in a message that has room for `most` in each: what
// goes to other hosts has no gaps then.
constexpr std::size_t stride_of(std::size_t bytes, std::size_t most) {
  return std::min(most, (bytes + 63) / 64 * 64);
}

}  // namespace lockstep
