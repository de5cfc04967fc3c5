// All-reduce among the processes of a host. Small messages: every process sends its partial sum to
// all, and all add up the same partials in the same order, which takes one round. Large messages:
// each process owns a slice of every chunk, adds up the slices it gets (round one, partials rings)
// and sends the result to all (round two, results rings); every byte crosses between processes
// twice, however many there are.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/copy.h"
#include "collectives/collectives.h"
#include "collectives/reduce.h"
#include "collectives/shared_work.h"
#include "collectives/slice.h"

namespace lockstep {
namespace {

struct AllReduce : Collective {
  const DType dtype;
  const Reduction reduction;
  const std::size_t width;
  const OutputCopy copy;
  std::vector<const std::byte*> sources;

  AllReduce(CollectiveContext& x, Calls c)
      : Collective(x, c),
        dtype(c[0]->dtype),
        reduction(c[0]->reduction),
        width(size_of(c[0]->dtype)),
        copy(c[0]->bytes() * c.size()) {}

  // out[0 .. count) = the sum over this process's ranks of the elements from `first` on.
  void add_local(std::byte* out, std::size_t first, std::size_t count) {
    sources.clear();
    for (const Call* call : calls) sources.push_back(call->in + first * width);
    share_reduce(context, out, sources, count, dtype, reduction);
  }

  void give_to_ranks(const std::byte* result, std::size_t first, std::size_t count) {
    share(context, count, width * (calls.size() + 1), kShareStep,
          [&](std::size_t at, std::size_t n) { give(result + at * width, first + at, n); });
  }
  void give(const std::byte* result, std::size_t first, std::size_t count) const {
    for (const Call* call : calls) {
      std::byte* out = call->out + first * width;
      if (out != result) copy(out, result, count * width);
    }
  }

  // A sum is still in the cache when it is copied.
  void within_process(std::size_t count) {
    check_reduction(dtype, reduction);
    for (const Call* call : calls) sources.push_back(call->in);
    const std::size_t block = (64 << 10) / width;
    const auto work = [&](std::size_t first, std::size_t all) {
      for (std::size_t at = first; at < first + all; at += block) {
        const std::size_t n = std::min(block, first + all - at);
        std::byte* sum = calls[0]->out + at * width;
        reduce(sum, sources, n, dtype, reduction, at);
        give(sum, at, n);
      }
    };
    share(context, count, width * 2 * calls.size(), kShareStep, work);
  }

  void in_one_round(std::size_t count) {
    const std::byte* partial =
        context.send_partials([&](std::byte* message) { add_local(message, 0, count); });
    share_reduce(context, calls[0]->out, context.await_partials(partial), count, dtype, reduction);
    context.release_partials();
    give_to_ranks(calls[0]->out, 0, count);
  }

  // The part of a chunk of n elements that one process owns.
  Slice slice(int local, std::size_t n) const {
    return slice_of(local, context.locals(), n, width);
  }

  // With one rank there is nothing to add up yet: its own slice is read from its input later.
  std::byte* send_partials(std::size_t first, std::size_t n) {
    return context.send_partials([&](std::byte* message) {
      if (calls.size() > 1) return add_local(message, first, n);
      const Slice mine = slice(context.local_self(), n);
      const std::size_t after = mine.first + mine.count;
      const std::byte* in = calls[0]->in + first * width;
      std::memcpy(message, in, mine.first * width);
      std::memcpy(message + after * width, in + after * width, (n - after) * width);
    });
  }

  void reduce_own_slice(const std::byte* message, std::size_t first, std::size_t n) {
    const Slice mine = slice(context.local_self(), n);
    auto partials =
        context.await_partials(calls.size() > 1 ? message : calls[0]->in + first * width);
    for (const std::byte*& partial : partials) partial += mine.first * width;
    BroadcastRing& own = clique.results(context.local_self());
    std::byte* result = context.acquire(own);
    share_reduce(context, result, partials, mine.count, dtype, reduction);
    context.release_partials();
    context.publish(own);
    give_to_ranks(result, first + mine.first, mine.count);
  }

  void collect_results(std::size_t first, std::size_t n) {
    for (int local = 0; local < context.locals(); ++local) {
      if (local == context.local_self()) continue;
      const Slice theirs = slice(local, n);
      const std::byte* result = context.await(clique.results(local));
      give_to_ranks(result, first + theirs.first, theirs.count);
      clique.results(local).release();
    }
  }

  void in_two_rounds(std::size_t count) {
    const auto parts = static_cast<std::size_t>(context.locals());
    const Tiles tiles(count, parts * elements_per_part(clique, parts, width));
    std::byte* messages[2] = {};
    for (std::size_t t = 0; t < tiles.count() + 2; ++t) {
      if (t < tiles.count()) messages[t % 2] = send_partials(tiles.at(t), tiles.size(t));
      if (t >= 1 && t - 1 < tiles.count())
        reduce_own_slice(messages[(t - 1) % 2], tiles.at(t - 1), tiles.size(t - 1));
      if (t >= 2) collect_results(tiles.at(t - 2), tiles.size(t - 2));
    }
  }
};

}  // namespace

void all_reduce_local(CollectiveContext& context, Calls calls) {
  AllReduce(context, calls).within_process(calls[0]->count);
}

void all_reduce_one_round(CollectiveContext& context, Calls calls) {
  AllReduce(context, calls).in_one_round(calls[0]->count);
}

void all_reduce_two_rounds(CollectiveContext& context, Calls calls) {
  AllReduce(context, calls).in_two_rounds(calls[0]->count);
}

}  // namespace lockstep
