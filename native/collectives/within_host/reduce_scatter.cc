// Reduce-scatter among the processes of a host: every process adds up, for each rank of other
// processes, what its own ranks have
// for it and sends these partial sums in one message; the owner adds up the partials of all
// processes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/reduce.h"

namespace lockstep {
namespace {

struct ReduceScatter {
  CollectiveContext& context;
  Clique& clique;
  Calls calls;
  const DType dtype;
  const Reduction reduction;
  const std::size_t width;
  const std::size_t count;  // elements of one rank's result
  const std::size_t tile;   // elements of each result in one message
  std::vector<const std::byte*> sources;

  std::span<const int> ranks(int local) const { return context.local_ranks(local); }
  // Of n elements for each rank.
  std::size_t in_message(int rank, std::size_t n) const {
    return static_cast<std::size_t>(rank) * stride_of(n * width, tile * width);
  }

  void add_local(std::byte* out, int rank, std::size_t at, std::size_t n) {
    sources.clear();
    for (const Call* call : calls)
      sources.push_back(call->in + (static_cast<std::size_t>(rank) * count + at) * width);
    reduce(out, sources, n, dtype, reduction);
  }

  // A process with one rank reads its own contribution from the input instead.
  std::byte* send(std::size_t at, std::size_t n) {
    BroadcastRing& own = clique.partials(context.local_self());
    std::byte* message = context.acquire(own);
    for (int local = 0; local < context.locals(); ++local) {
      if (local == context.local_self() && calls.size() == 1) continue;
      for (const int rank : ranks(local)) add_local(message + in_message(rank, n), rank, at, n);
    }
    context.publish(own);
    return message;
  }

  void receive(const std::byte* own_message, std::size_t at, std::size_t n) {
    std::vector<const std::byte*> messages;
    for (int local = 0; local < context.locals(); ++local)
      messages.push_back(local == context.local_self() ? own_message
                                                       : context.await(clique.partials(local)));
    const auto own = ranks(context.local_self());
    for (std::size_t i = 0; i < own.size(); ++i) {
      sources.clear();
      for (int local = 0; local < context.locals(); ++local)
        sources.push_back(local == context.local_self() && calls.size() == 1
                              ? calls[0]->in +
                                    (static_cast<std::size_t>(own[0]) * count + at) * width
                              : messages[static_cast<std::size_t>(local)] + in_message(own[i], n));
      reduce(calls[i]->out + at * width, sources, n, dtype, reduction);
    }
    for (int local = 0; local < context.locals(); ++local)
      if (local != context.local_self()) clique.partials(local).release();
  }

  void within_process() {
    const auto own = ranks(context.local_self());
    for (std::size_t i = 0; i < own.size(); ++i) add_local(calls[i]->out, own[i], 0, count);
  }
};

ReduceScatter make(CollectiveContext& context, Calls calls) {
  Clique& clique = context.clique();
  const Call& call = *calls[0];
  const std::size_t width = size_of(call.dtype);
  return {context,
          clique,
          calls,
          call.dtype,
          call.reduction,
          width,
          call.count,
          elements_per_part(clique, static_cast<std::size_t>(clique.size()), width),
          {}};
}

}  // namespace

void reduce_scatter_local(CollectiveContext& context, Calls calls) {
  make(context, calls).within_process();
}

void reduce_scatter_direct(CollectiveContext& context, Calls calls) {
  ReduceScatter run = make(context, calls);
  const std::size_t tiles = std::max<std::size_t>(1, (run.count + run.tile - 1) / run.tile);
  const auto size = [&](std::size_t t) { return std::min(run.tile, run.count - t * run.tile); };
  std::byte* messages[2] = {};
  for (std::size_t t = 0; t <= tiles; ++t) {
    if (t < tiles) messages[t % 2] = run.send(t * run.tile, size(t));
    if (t > 0) run.receive(messages[(t - 1) % 2], (t - 1) * run.tile, size(t - 1));
  }
}

}  // namespace lockstep
