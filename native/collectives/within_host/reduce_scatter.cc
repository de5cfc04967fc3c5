// Reduce-scatter among the processes of a host: every process adds up, for each rank of other
// processes, what its own ranks have
// for it and sends these partial sums in one message; the owner adds up the partials of all
// processes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/reduce.h"
#include "collectives/shared_work.h"

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
  std::vector<const std::byte*> inputs;

  std::span<const int> ranks(int local) const { return context.local_ranks(local); }
  // The offset of a rank's elements in a message that has n for each rank.
  std::size_t in_message(int rank, std::size_t n) const {
    return static_cast<std::size_t>(rank) * stride_of(n * width, tile * width);
  }

  // What this process's ranks have for each of `to`, added up at out_of(i) for to[i].
  template <typename OutOf>
  void add_local(std::span<const int> to, std::size_t at, std::size_t n, OutOf out_of) {
    share_each(context, to.size(), n * width * (calls.size() + 1), [&](std::size_t i) {
      reduce(out_of(i), inputs, n, dtype, reduction, static_cast<std::size_t>(to[i]) * count + at);
    });
  }

  // A process with one rank reads its own contribution from the input instead.
  std::byte* send(std::size_t at, std::size_t n) {
    BroadcastRing& own = clique.partials(context.local_self());
    std::byte* message = context.acquire(own);
    for (int local = 0; local < context.locals(); ++local) {
      if (local == context.local_self() && calls.size() == 1) continue;
      const auto theirs = ranks(local);
      add_local(theirs, at, n, [&](std::size_t i) { return message + in_message(theirs[i], n); });
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
    if (calls.size() == 1) {
      for (const std::byte*& message : messages) message += in_message(own[0], n);
      messages[static_cast<std::size_t>(context.local_self())] =
          inputs[0] + (static_cast<std::size_t>(own[0]) * count + at) * width;
      reduce(calls[0]->out + at * width, messages, n, dtype, reduction);
    } else {
      share_each(context, own.size(), n * width * (messages.size() + 1), [&](std::size_t i) {
        reduce(calls[i]->out + at * width, messages, n, dtype, reduction,
               in_message(own[i], n) / width);
      });
    }
    for (int local = 0; local < context.locals(); ++local)
      if (local != context.local_self()) clique.partials(local).release();
  }

  void within_process() {
    add_local(ranks(context.local_self()), 0, count, [&](std::size_t i) { return calls[i]->out; });
  }
};

ReduceScatter make(CollectiveContext& context, Calls calls) {
  Clique& clique = context.clique();
  const Call& call = *calls[0];
  const std::size_t width = size_of(call.dtype);
  check_reduction(call.dtype, call.reduction);
  std::vector<const std::byte*> inputs;
  for (const Call* each : calls) inputs.push_back(each->in);
  return {context,
          clique,
          calls,
          call.dtype,
          call.reduction,
          width,
          call.count,
          elements_per_part(clique, static_cast<std::size_t>(clique.size()), width),
          std::move(inputs)};
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
