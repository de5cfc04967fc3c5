// The collectives, each run by one thread a process: the leader, with the calls of all ranks of its
// process (in rank order). Within a host (within_host/) processes exchange messages by broadcast
// rings in shared memory; between hosts (between_hosts/) by links, in two levels: what the
// processes of a host have in common crosses once.
//
// Shape shared by all: the buffers are cut into chunks that fit one message; chunk c is sent while
// chunk c - 1 is being received, so that no process waits for a message which is not already on
// its way. Inputs may be reused as soon as the function returns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "core/collective_context.h"
#include "core/job.h"

namespace lockstep {

using Calls = std::span<const Call* const>;

// What every algorithm works with.
struct Collective {
  CollectiveContext& context;
  Clique& clique;
  Calls calls;

  Collective(CollectiveContext& x, Calls c) : context(x), clique(x.clique()), calls(c) {}

  bool is_alone() const { return context.locals() == 1; }  // on its host
  std::span<const int> ranks(int local) const { return context.local_ranks(local); }
};

// How `length` is cut into tiles, of which each is a message. Nothing is one empty tile, so that
// the others learn that this process is in the same collective.
class Tiles {
 public:
  Tiles(std::size_t length, std::size_t tile)
      : length_(length),
        tile_(tile),
        count_(std::max<std::size_t>(1, (length + tile - 1) / tile)) {}

  std::size_t count() const { return count_; }
  std::size_t at(std::size_t index) const { return index * tile_; }
  std::size_t size(std::size_t index) const { return std::min(tile_, length_ - at(index)); }

 private:
  std::size_t length_;
  std::size_t tile_;
  std::size_t count_;
};

// Runs the algorithm that the table in collectives.cc chooses.
void run_collective(Clique& clique, Calls calls, std::uint32_t sequence);

// What a job prescribes: reads "all-reduce=ring,all-gather=bruck". Throws Error naming what there
// is.
std::vector<Prescribed> prescribed_algorithms(const std::string& text);

// The algorithms of one host. `local`: all ranks are in this process; `direct`: every process sends
// to all others; the rest is described where they are defined.
void all_reduce_local(CollectiveContext& context, Calls calls);
void all_reduce_one_round(CollectiveContext& context, Calls calls);
void all_reduce_two_rounds(CollectiveContext& context, Calls calls);
void all_gather_local(CollectiveContext& context, Calls calls);
void all_gather_direct(CollectiveContext& context, Calls calls);
void reduce_scatter_local(CollectiveContext& context, Calls calls);
void reduce_scatter_direct(CollectiveContext& context, Calls calls);
void all_to_all_local(CollectiveContext& context, Calls calls);
void all_to_all_single_copy(CollectiveContext& context, Calls calls);
void all_to_all_direct(CollectiveContext& context, Calls calls);
// The same in parts, between which the caller does other work. The first step of an all-gather and
// the beginning of an all-to-all wait for no other process; by them the others of the host see that
// this one has arrived. After two steps all of them have.
std::size_t all_gather_steps(CollectiveContext& context, Calls calls);
void all_gather_step(CollectiveContext& context, Calls calls, std::size_t step);
void all_to_all_direct_begin(CollectiveContext& context, Calls calls);
void all_to_all_direct_finish(CollectiveContext& context, Calls calls);
// Bytes [at, at + n) of each block.
void all_to_all_local_part(CollectiveContext& context, Calls calls, std::size_t at, std::size_t n);
// Whether `all_to_all_single_copy` is possible and worth it. The first time, the processes try it
// and compare the results.
bool all_to_all_can_read(CollectiveContext& context, Calls calls);

// The algorithms of several hosts. The bytes of what one process has to send, or of all parts that
// a host gets, up to which latency decides; messages of shared memory have room for them.
inline constexpr std::size_t kSmallBetweenHosts = 32 << 10;
void all_reduce_recursive_doubling(CollectiveContext& context, Calls calls);
void all_reduce_halving_doubling(CollectiveContext& context, Calls calls);
void all_reduce_direct(CollectiveContext& context, Calls calls);
void all_reduce_ring(CollectiveContext& context, Calls calls);
void all_gather_bruck(CollectiveContext& context, Calls calls);
void all_gather_pairwise(CollectiveContext& context, Calls calls);
void reduce_scatter_recursive_doubling(CollectiveContext& context, Calls calls);
void reduce_scatter_pairwise(CollectiveContext& context, Calls calls);
void all_to_all_bruck(CollectiveContext& context, Calls calls);
void all_to_all_pairwise(CollectiveContext& context, Calls calls);
// Whether the blocks of a host, of `bytes` bytes each, are few enough for `all_to_all_bruck`.
bool all_to_all_is_small(const Clique& clique, std::size_t bytes);

// How many elements of `width` bytes each of `parts` gets in one message, a multiple of a cache
// line; throws Error when not even one fits.
std::size_t elements_per_part(const Clique& clique, std::size_t parts, std::size_t width);

// How far apart parts of `bytes` bytes stand in a message that has room for `most` in each: what
// goes to other hosts has no gaps then.
constexpr std::size_t stride_of(std::size_t bytes, std::size_t most) {
  return std::min(most, (bytes + 63) / 64 * 64);
}

}  // namespace lockstep
