// All-to-all among the processes of a host: one message of a process holds, for each of its ranks,
// the blocks for all ranks of other processes; every other process picks out what is for its own
// ranks. Large blocks are read straight from the memory of their process, where that is possible.
// XLA copies the block that a rank keeps for itself.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/copy.h"
#include "collectives/collectives.h"
#include "collectives/shared_work.h"
#include "core/job.h"

namespace lockstep {
namespace {

constexpr std::size_t kMinPiece = 16 << 10;

struct AllToAll : Collective {
  const std::size_t bytes;  // of one block
  const std::size_t tile;   // bytes of each block in one message
  const Tiles tiles;
  const OutputCopy copy;

  AllToAll(CollectiveContext& x, Calls c)
      : Collective(x, c),
        bytes(c[0]->bytes()),
        tile(elements_per_part(clique, clique.max_local() * ranks_before(context.locals()), 1)),
        tiles(bytes, tile),
        copy(bytes * static_cast<std::size_t>(clique.size()) * c.size()) {}

  // The ranks of the local peers before this one.
  std::size_t ranks_before(int local) const {
    std::size_t count = 0;
    for (int lower = 0; lower < local; ++lower) count += ranks(lower).size();
    return count;
  }
  // The offset at which n bytes of each block begin that are for the rank with this index in a
  // local peer.
  std::size_t in_message(std::size_t member, int local, std::size_t index, std::size_t n) const {
    return ((ranks_before(local) + index) * clique.max_local() + member) * stride_of(n, tile);
  }

  void send(std::size_t at, std::size_t n) {
    context.send_partials([&](std::byte* message) {
      for (int local = 0; local < context.locals(); ++local) {
        if (local == context.local_self()) continue;
        const auto theirs = ranks(local);
        share_each(context, theirs.size() * calls.size(), 2 * n, [&](std::size_t pair) {
          const std::size_t k = pair / calls.size(), i = pair % calls.size();
          std::memcpy(message + in_message(i, local, k, n),
                      calls[i]->ins[static_cast<std::size_t>(theirs[k])] + at, n);
        });
      }
    });
  }

  void receive(std::size_t at, std::size_t n) {
    const auto own = ranks(context.local_self());
    context.take_partials([&](int local, const std::byte* message) {
      const auto theirs = ranks(local);
      share_each(context, theirs.size() * own.size(), 2 * n, [&](std::size_t pair) {
        const std::size_t i = pair / own.size(), k = pair % own.size();
        copy(calls[k]->outs[static_cast<std::size_t>(theirs[i])] + at,
             message + in_message(i, context.local_self(), k, n), n);
      });
    });
  }

  // Whether each block is worth a read of its own and all addresses fit into one message.
  bool can_read() const {
    if (bytes < std::min(kMinPiece, clique.job().single_copy_from())) return false;
    if (in_table(clique.max_local(), 0) * sizeof(std::uint64_t) > clique.capacity()) return false;
    return context.single_copy(bytes * clique.max_local() * clique.max_local());
  }
  std::size_t in_table(std::size_t member, int target) const {
    return member * static_cast<std::size_t>(clique.size()) + static_cast<std::size_t>(target);
  }

  void send_addresses() {
    context.send_partials([&](std::byte* message) {
      auto* table = reinterpret_cast<std::uint64_t*>(message);
      for (std::size_t i = 0; i < calls.size(); ++i)
        for (int target = 0; target < clique.size(); ++target)
          table[in_table(i, target)] =
              reinterpret_cast<std::uint64_t>(calls[i]->ins[static_cast<std::size_t>(target)]);
    });
  }

  void read_blocks(int local) {
    const auto* table =
        reinterpret_cast<const std::uint64_t*>(context.await(clique.partials(local)));
    const auto own = ranks(context.local_self()), theirs = ranks(local);
    std::vector<MemoryPiece> pieces;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      for (std::size_t k = 0; k < own.size(); ++k)
        pieces.push_back({table[in_table(i, own[k])],
                          calls[k]->outs[static_cast<std::size_t>(theirs[i])], bytes});
    context.read(local, pieces);
    clique.partials(local).release();
  }

  // Every process publishes where its blocks are, and reads those that are for it.
  void by_reading() {
    send_addresses();
    within_process(0, bytes);
    for (int step = 1; step < context.locals(); ++step)
      read_blocks((context.local_self() + step) % context.locals());
    context.drain(clique.partials(context.local_self()));
  }

  void within_process(std::size_t at, std::size_t n) {
    const auto own = ranks(context.local_self());
    share_each(context, own.size() * own.size(), 2 * n, [&](std::size_t pair) {
      const std::size_t i = pair / own.size(), k = pair % own.size();
      if (i != k)
        copy(calls[k]->outs[static_cast<std::size_t>(own[i])] + at,
             calls[i]->ins[static_cast<std::size_t>(own[k])] + at, n);
    });
  }
};

}  // namespace

void all_to_all_local(CollectiveContext& context, Calls calls) {
  AllToAll(context, calls).within_process(0, calls[0]->bytes());
}

void all_to_all_local_part(CollectiveContext& context, Calls calls, std::size_t at, std::size_t n) {
  AllToAll(context, calls).within_process(at, n);
}

bool all_to_all_can_read(CollectiveContext& context, Calls calls) {
  return AllToAll(context, calls).can_read();
}

void all_to_all_single_copy(CollectiveContext& context, Calls calls) {
  AllToAll(context, calls).by_reading();
}

void all_to_all_direct(CollectiveContext& context, Calls calls) {
  all_to_all_direct_begin(context, calls);
  all_to_all_direct_finish(context, calls);
}

void all_to_all_direct_begin(CollectiveContext& context, Calls calls) {
  AllToAll run(context, calls);
  run.send(0, run.tiles.size(0));
}

void all_to_all_direct_finish(CollectiveContext& context, Calls calls) {
  AllToAll run(context, calls);
  const Tiles& tiles = run.tiles;
  run.within_process(0, run.bytes);
  for (std::size_t t = 1; t <= tiles.count(); ++t) {
    if (t < tiles.count()) run.send(tiles.at(t), tiles.size(t));
    run.receive(tiles.at(t - 1), tiles.size(t - 1));
  }
}

}  // namespace lockstep
