// All-gather among the processes of a host: every process sends the parts of its ranks once, and
// every other process reads them in place, once for each of its own ranks.
#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "collectives/collectives.h"
#include "collectives/shared_work.h"

namespace lockstep {
namespace {

struct AllGather {
  CollectiveContext& context;
  Clique& clique;
  Calls calls;
  const std::size_t bytes;  // of one rank's part
  const std::size_t tile;   // bytes of each part in one message
  const OutputCopy copy;

  std::span<const int> ranks(int local) const { return context.local_ranks(local); }
  std::size_t tiles() const { return std::max<std::size_t>(1, (bytes + tile - 1) / tile); }
  std::size_t size(std::size_t t) const { return std::min(tile, bytes - t * tile); }
  bool is_alone() const { return context.locals() == 1; }

  // The parts of these ranks, part_of(i) for ranks[i], to each rank of this process.
  template <typename PartOf>
  void give_to_ranks(std::span<const int> ranks, std::size_t at, std::size_t n, PartOf part_of) {
    share_each(context, ranks.size() * calls.size(), 2 * n, [&](std::size_t i) {
      const std::size_t part = i / calls.size();
      const auto rank = static_cast<std::size_t>(ranks[part]);
      copy(calls[i % calls.size()]->out + rank * bytes + at, part_of(part), n);
    });
  }

  void send(std::size_t at, std::size_t n) {
    BroadcastRing& own = clique.partials(context.local_self());
    std::byte* message = context.acquire(own);
    const std::size_t stride = stride_of(n, tile);
    share_each(context, calls.size(), 2 * n,
               [&](std::size_t i) { std::memcpy(message + i * stride, calls[i]->in + at, n); });
    context.publish(own);
  }

  void copy_own(std::size_t at, std::size_t n) {
    give_to_ranks(ranks(context.local_self()), at, n,
                  [&](std::size_t i) { return calls[i]->in + at; });
  }

  void receive(std::size_t at, std::size_t n) {
    for (int local = 0; local < context.locals(); ++local) {
      if (local == context.local_self()) continue;
      const std::byte* message = context.await(clique.partials(local));
      give_to_ranks(ranks(local), at, n,
                    [&](std::size_t i) { return message + i * stride_of(n, tile); });
      clique.partials(local).release();
    }
  }

  std::size_t steps() const { return tiles() + (is_alone() ? 0 : 1); }
  void step(std::size_t t) {
    if (t < tiles() && !is_alone()) send(t * tile, size(t));
    if (t < tiles()) copy_own(t * tile, size(t));
    if (t > 0 && !is_alone()) receive((t - 1) * tile, size(t - 1));
  }
};

AllGather make(CollectiveContext& context, Calls calls) {
  Clique& clique = context.clique();
  const std::size_t bytes = calls[0]->bytes();
  return {context,
          clique,
          calls,
          bytes,
          elements_per_part(clique, context.locals() == 1 ? 1 : clique.max_local(), 1),
          OutputCopy(bytes * static_cast<std::size_t>(clique.size()) * calls.size())};
}

}  // namespace

void all_gather_local(CollectiveContext& context, Calls calls) {
  make(context, calls).copy_own(0, calls[0]->bytes());
}

void all_gather_direct(CollectiveContext& context, Calls calls) {
  AllGather run = make(context, calls);
  for (std::size_t t = 0; t < run.steps(); ++t) run.step(t);
}

std::size_t all_gather_steps(CollectiveContext& context, Calls calls) {
  return make(context, calls).steps();
}

void all_gather_step(CollectiveContext& context, Calls calls, std::size_t step) {
  make(context, calls).step(step);
}

}  // namespace lockstep
