// All-gather among the processes of a host: every process sends the parts of its ranks once, and
// every other process reads them in place, once for each of its own ranks.
#include <cstring>

#include "base/copy.h"
#include "collectives/collectives.h"
#include "collectives/shared_work.h"

namespace lockstep {
namespace {

struct AllGather : Collective {
  const std::size_t bytes;  // of one rank's part
  const std::size_t tile;   // bytes of each part in one message
  const Tiles tiles;
  const OutputCopy copy;

  AllGather(CollectiveContext& x, Calls c)
      : Collective(x, c),
        bytes(c[0]->bytes()),
        tile(elements_per_part(clique, is_alone() ? 1 : clique.max_local(), 1)),
        tiles(bytes, tile),
        copy(bytes * static_cast<std::size_t>(clique.size()) * c.size()) {}

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
    const std::size_t stride = stride_of(n, tile);
    context.send_partials([&](std::byte* message) {
      share_each(context, calls.size(), 2 * n,
                 [&](std::size_t i) { std::memcpy(message + i * stride, calls[i]->in + at, n); });
    });
  }

  void copy_own(std::size_t at, std::size_t n) {
    give_to_ranks(ranks(context.local_self()), at, n,
                  [&](std::size_t i) { return calls[i]->in + at; });
  }

  void receive(std::size_t at, std::size_t n) {
    context.take_partials([&](int local, const std::byte* message) {
      give_to_ranks(ranks(local), at, n,
                    [&](std::size_t i) { return message + i * stride_of(n, tile); });
    });
  }

  std::size_t steps() const { return tiles.count() + (is_alone() ? 0 : 1); }
  void step(std::size_t t) {
    if (t < tiles.count() && !is_alone()) send(tiles.at(t), tiles.size(t));
    if (t < tiles.count()) copy_own(tiles.at(t), tiles.size(t));
    if (t > 0 && !is_alone()) receive(tiles.at(t - 1), tiles.size(t - 1));
  }
};

}  // namespace

void all_gather_local(CollectiveContext& context, Calls calls) {
  AllGather(context, calls).copy_own(0, calls[0]->bytes());
}

void all_gather_direct(CollectiveContext& context, Calls calls) {
  AllGather run(context, calls);
  for (std::size_t t = 0; t < run.steps(); ++t) run.step(t);
}

std::size_t all_gather_steps(CollectiveContext& context, Calls calls) {
  return AllGather(context, calls).steps();
}

void all_gather_step(CollectiveContext& context, Calls calls, std::size_t step) {
  AllGather(context, calls).step(step);
}

}  // namespace lockstep
