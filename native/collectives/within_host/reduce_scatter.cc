// Reduce-scatter among the processes of a host: every process adds up, for each rank of other
// processes, what its own ranks have for it and sends these partial sums in one message; the owner
// adds up the partials of all processes.
#include <vector>

#include "collectives/collectives.h"
#include "collectives/reduce.h"
#include "collectives/shared_work.h"

namespace lockstep {
namespace {

struct ReduceScatter : Collective {
  const DType dtype;
  const Reduction reduction;
  const std::size_t width;
  const std::size_t count;  // elements of one rank's result
  const std::size_t tile;   // elements of each result in one message
  std::vector<const std::byte*> inputs;

  ReduceScatter(CollectiveContext& x, Calls c)
      : Collective(x, c),
        dtype(c[0]->dtype),
        reduction(c[0]->reduction),
        width(size_of(dtype)),
        count(c[0]->count),
        tile(elements_per_part(clique, static_cast<std::size_t>(clique.size()), width)) {
    check_reduction(dtype, reduction);
    for (const Call* each : calls) inputs.push_back(each->in);
  }

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
    return context.send_partials([&](std::byte* message) {
      for (int local = 0; local < context.locals(); ++local) {
        if (local == context.local_self() && calls.size() == 1) continue;
        const auto theirs = ranks(local);
        add_local(theirs, at, n, [&](std::size_t i) { return message + in_message(theirs[i], n); });
      }
    });
  }

  void receive(const std::byte* own_message, std::size_t at, std::size_t n) {
    auto messages = context.await_partials(own_message);
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
    context.release_partials();
  }

  void within_process() {
    add_local(ranks(context.local_self()), 0, count, [&](std::size_t i) { return calls[i]->out; });
  }
};

}  // namespace

void reduce_scatter_local(CollectiveContext& context, Calls calls) {
  ReduceScatter(context, calls).within_process();
}

void reduce_scatter_direct(CollectiveContext& context, Calls calls) {
  ReduceScatter run(context, calls);
  const Tiles tiles(run.count, run.tile);
  std::byte* messages[2] = {};
  for (std::size_t t = 0; t <= tiles.count(); ++t) {
    if (t < tiles.count()) messages[t % 2] = run.send(tiles.at(t), tiles.size(t));
    if (t > 0) run.receive(messages[(t - 1) % 2], tiles.at(t - 1), tiles.size(t - 1));
  }
}

}  // namespace lockstep
