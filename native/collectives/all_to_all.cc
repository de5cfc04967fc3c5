// All-to-all: one message of a process holds, for each of its ranks, the blocks for all ranks
// elsewhere; every other process picks out what is for its own ranks. Large blocks are read
// straight from the memory of their process, where that is possible. XLA copies the block that a
// rank keeps for itself.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/copy.h"
#include "core/job.h"

namespace lockstep {
namespace {

constexpr std::size_t kSmallestPiece = 16 << 10;

struct AllToAll {
  Exchange& exchange;
  Clique& clique;
  Calls calls;
  const std::size_t bytes;  // of one block
  const std::size_t tile;   // bytes of each block in one message
  const OutputCopy copy;

  std::span<const int> ranks(int group) const {
    return clique.groups()[static_cast<std::size_t>(group)].ranks;
  }
  // Of n bytes of each block.
  std::size_t in_message(std::size_t member, int target, std::size_t n) const {
    return (static_cast<std::size_t>(target) * clique.max_local() + member) * stride_of(n, tile);
  }

  void send(std::size_t at, std::size_t n) {
    Lane& own = clique.partials(exchange.self());
    std::byte* message = exchange.acquire(own);
    for (int group = 0; group < exchange.peers(); ++group) {
      if (group == exchange.self()) continue;
      for (const int target : ranks(group))
        for (std::size_t i = 0; i < calls.size(); ++i)
          std::memcpy(message + in_message(i, target, n),
                      calls[i]->ins[static_cast<std::size_t>(target)] + at, n);
    }
    exchange.publish(own, [&](int group) {
      const auto [first, last] = std::ranges::minmax(ranks(group));
      const std::size_t start = in_message(0, first, n);
      return Lane::Part{start, in_message(calls.size() - 1, last, n) + n - start};
    });
  }

  void receive(std::size_t at, std::size_t n) {
    const auto own = ranks(exchange.self());
    for (int group = 0; group < exchange.peers(); ++group) {
      if (group == exchange.self()) continue;
      const std::byte* message = exchange.await(clique.partials(group));
      const auto theirs = ranks(group);
      for (std::size_t i = 0; i < theirs.size(); ++i)
        for (std::size_t k = 0; k < own.size(); ++k)
          copy(calls[k]->outs[static_cast<std::size_t>(theirs[i])] + at,
               message + in_message(i, own[k], n), n);
      exchange.release(clique.partials(group));
    }
  }

  // In one copy, if the blocks are worth a piece each and their addresses fit into one message.
  bool reads() const {
    if (bytes < std::min(kSmallestPiece, clique.world().single_copy_from())) return false;
    if (in_table(clique.max_local(), 0) * sizeof(std::uint64_t) > clique.capacity()) return false;
    return exchange.single_copy(bytes * clique.max_local() * clique.max_local());
  }
  std::size_t in_table(std::size_t member, int target) const {
    return member * static_cast<std::size_t>(clique.size()) + static_cast<std::size_t>(target);
  }

  void send_addresses() {
    Lane& own = clique.partials(exchange.self());
    auto* table = reinterpret_cast<std::uint64_t*>(exchange.acquire(own));
    for (std::size_t i = 0; i < calls.size(); ++i)
      for (int target = 0; target < clique.size(); ++target)
        table[in_table(i, target)] =
            reinterpret_cast<std::uint64_t>(calls[i]->ins[static_cast<std::size_t>(target)]);
    // Nobody reads memory across hosts.
    exchange.publish(own, [](int) { return Lane::Part{}; });
  }

  void read_blocks(int group) {
    const auto* table =
        reinterpret_cast<const std::uint64_t*>(exchange.await(clique.partials(group)));
    const auto own = ranks(exchange.self()), theirs = ranks(group);
    std::vector<PeerMemory::Piece> pieces;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      for (std::size_t k = 0; k < own.size(); ++k)
        pieces.push_back({table[in_table(i, own[k])],
                          calls[k]->outs[static_cast<std::size_t>(theirs[i])], bytes});
    exchange.read(group, pieces);
    exchange.release(clique.partials(group));
  }

  // Every process tells where its blocks are, and fetches those that are for it.
  void by_reading() {
    send_addresses();
    within_process();
    for (int step = 1; step < exchange.peers(); ++step)
      read_blocks((exchange.self() + step) % exchange.peers());
    exchange.drain(clique.partials(exchange.self()));
  }

  void within_process() {
    const auto own = ranks(exchange.self());
    for (std::size_t i = 0; i < own.size(); ++i)
      for (std::size_t k = 0; k < own.size(); ++k)
        if (i != k)
          copy(calls[k]->outs[static_cast<std::size_t>(own[i])],
               calls[i]->ins[static_cast<std::size_t>(own[k])], bytes);
  }
};

}  // namespace

void all_to_all(Exchange& exchange, Calls calls) {
  Clique& clique = exchange.clique();
  const std::size_t bytes = calls[0]->bytes();
  const std::size_t parts = clique.max_local() * static_cast<std::size_t>(clique.size());
  AllToAll run{exchange,
               clique,
               calls,
               bytes,
               elements_per_part(clique, parts, 1),
               OutputCopy(bytes * static_cast<std::size_t>(clique.size()) * calls.size())};
  if (exchange.peers() == 1) return run.within_process();
  if (run.reads()) return run.by_reading();
  run.within_process();
  const std::size_t tiles = std::max<std::size_t>(1, (bytes + run.tile - 1) / run.tile);
  const auto size = [&](std::size_t t) { return std::min(run.tile, bytes - t * run.tile); };
  for (std::size_t t = 0; t <= tiles; ++t) {
    if (t < tiles) run.send(t * run.tile, size(t));
    if (t > 0) run.receive((t - 1) * run.tile, size(t - 1));
  }
}

}  // namespace lockstep
