// All-reduce on several hosts, in two levels: the processes of a host add up in shared memory, and
// one process of each host takes the sum, or a slice of it, to the other hosts. So the bytes
// between hosts do not grow with the processes and devices of a host.
//
// The vector goes in chunks, so that a host adds up one while another one crosses; where every host
// has one process it goes as a whole. `columns` processes of each host cross, with a slice each.
#include <algorithm>
#include <vector>

#include "base/copy.h"
#include "collectives/between_hosts/host_collective.h"
#include "collectives/between_hosts/team_all_reduce.h"
#include "collectives/shared_work.h"
#include "collectives/slice.h"

namespace lockstep {
namespace {

// A host's slice of at least this many bytes is sent in pieces of 256 KiB.
constexpr std::size_t kOverlapFrom = std::size_t{1} << 20;

using TeamAllReduce = void (*)(CollectiveContext&, const Team&, const Vector&);

struct HostAllReduce final : HostCollective, LocalRanks {
  const TeamAllReduce between;
  const int columns;
  const Call& first;
  const std::size_t width;
  const OutputCopy copy;
  std::vector<const std::byte*> sources;
  std::size_t alone_at = 0;  // the first element of what crosses, of a process that is alone

  HostAllReduce(CollectiveContext& x, Calls c, TeamAllReduce crossing, int how_many)
      : HostCollective(x, c),
        between(crossing),
        columns(how_many),
        first(*c[0]),
        width(size_of(first.dtype)),
        copy(first.bytes() * c.size()) {}

  // The part of a chunk of n elements with which one column crosses.
  Slice slice(int column, std::size_t n) const { return slice_of(column, columns, n, width); }

  // out[0 .. n) = the sum over this process's ranks of the elements from `at` on.
  void add_own(std::byte* out, std::size_t at, std::size_t n) {
    sources.clear();
    for (const Call* call : calls) sources.push_back(call->in + at * width);
    share_reduce(context, out, sources, n, first.dtype, first.reduction);
  }

  void give_to_ranks(const std::byte* result, std::size_t at, std::size_t n) {
    share(context, n, width * (calls.size() + 1), kShareStep,
          [&](std::size_t from, std::size_t count) {
            for (const Call* call : calls) {
              std::byte* out = call->out + (at + from) * width;
              if (out != result + from * width) copy(out, result + from * width, count * width);
            }
          });
  }

  // The ranks of a process that is alone on its host add up, and copy, piece by piece.
  void add(std::size_t at, std::size_t n) override {
    add_own(first.out + (alone_at + at) * width, alone_at + at, n);
  }
  void give(std::size_t at, std::size_t n) override {
    give_to_ranks(first.out + (alone_at + at) * width, alone_at + at, n);
  }
  void cross_alone(std::size_t at, std::size_t n) {
    alone_at = at;
    const bool several = calls.size() > 1, overlaps = several && can_overlap(n * width);
    std::byte* out = first.out + at * width;
    const std::byte* in = several ? out : first.in + at * width;
    if (several && !overlaps) add(0, n);
    between(context, team_of(clique, 0),
            {in, out, n, first.dtype, first.reduction, overlaps ? this : nullptr});
    if (several && !overlaps) give(0, n);
  }
  // A piece of a short vector is too little to share with the ranks that wait.
  bool can_overlap(std::size_t bytes) {
    return !clique.local_group().crew().helps() ||
           bytes >= kOverlapFrom * static_cast<std::size_t>(hosts);
  }

  std::byte* send_partials(std::size_t at, std::size_t n) {
    return context.send_partials([&](std::byte* message) { add_own(message, at, n); });
  }

  // Adds up this process's slice of all processes of the host, and crosses with it.
  void cross_slice(const std::byte* own, std::size_t at, std::size_t n) {
    const bool crosses = context.local_self() < columns;
    const Slice mine = crosses ? slice(context.local_self(), n) : Slice{0, 0};
    sources = context.await_partials(own);
    for (const std::byte*& source : sources) source += mine.first * width;
    BroadcastRing& results = clique.results(context.local_self());
    std::byte* result = crosses ? context.acquire(results) : nullptr;
    if (crosses) share_reduce(context, result, sources, mine.count, first.dtype, first.reduction);
    context.release_partials();
    if (!crosses) return;
    between(context, team_of(clique, context.local_self()),
            {result, result, mine.count, first.dtype, first.reduction});
    context.publish(results);
    give_to_ranks(result, at + mine.first, mine.count);
  }

  void collect_results(std::size_t at, std::size_t n) {
    for (int column = 0; column < columns; ++column) {
      if (column == context.local_self()) continue;
      const Slice theirs = slice(column, n);
      const std::byte* result = context.await(clique.results(column));
      give_to_ranks(result, at + theirs.first, theirs.count);
      clique.results(column).release();
    }
    context.all_arrived();
  }

  void run(std::size_t tile) {
    const Tiles tiles(first.count, tile);
    if (is_alone()) {
      for (std::size_t t = 0; t < tiles.count(); ++t) cross_alone(tiles.at(t), tiles.size(t));
      return;
    }
    std::byte* messages[2] = {};
    for (std::size_t t = 0; t < tiles.count() + 2; ++t) {
      if (t < tiles.count()) messages[t % 2] = send_partials(tiles.at(t), tiles.size(t));
      if (t >= 1 && t - 1 < tiles.count())
        cross_slice(messages[(t - 1) % 2], tiles.at(t - 1), tiles.size(t - 1));
      if (t >= 2) collect_results(tiles.at(t - 2), tiles.size(t - 2));
    }
  }
};

// `small`: one process of each host crosses with all of it.
void run(CollectiveContext& context, Calls calls, TeamAllReduce between, bool small) {
  const Clique& clique = context.clique();
  const int columns = small ? 1 : static_cast<int>(clique.fewest_of_a_host());
  HostAllReduce all_reduce(context, calls, between, columns);
  const std::size_t most_elements = clique.capacity() / 64 * 64 / all_reduce.width;
  all_reduce.run(clique.most_of_a_host() == 1 ? std::max<std::size_t>(1, calls[0]->count)
                                              : most_elements);
}

}  // namespace

void all_reduce_recursive_doubling(CollectiveContext& context, Calls calls) {
  // Between two hosts it sends no more than the other algorithms do, so it is not for small vectors
  // alone.
  run(context, calls, recursive_doubling, calls[0]->bytes() <= kSmallBetweenHosts);
}

void all_reduce_halving_doubling(CollectiveContext& context, Calls calls) {
  run(context, calls, halving_doubling, false);
}

void all_reduce_direct(CollectiveContext& context, Calls calls) {
  run(context, calls, direct_slices, false);
}

void all_reduce_ring(CollectiveContext& context, Calls calls) {
  run(context, calls, ring_slices, false);
}

}  // namespace lockstep
