// All-to-all: one message of a process holds, for each of its ranks, the blocks for all ranks
// elsewhere; every other process picks out what is for its own ranks. XLA copies the block that a
// rank keeps for itself.
#include <algorithm>
#include <cstring>

#include "collectives/collectives.h"
#include "collectives/copy.h"

namespace lockstep {
namespace {

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
  std::size_t in_message(std::size_t member, int target) const {
    return (member * static_cast<std::size_t>(clique.size()) + static_cast<std::size_t>(target)) *
           tile;
  }

  void send(std::size_t at, std::size_t n) {
    Lane& own = clique.partials(exchange.self());
    std::byte* message = exchange.acquire(own);
    for (int group = 0; group < exchange.peers(); ++group) {
      if (group == exchange.self()) continue;
      for (const int target : ranks(group))
        for (std::size_t i = 0; i < calls.size(); ++i)
          std::memcpy(message + in_message(i, target),
                      calls[i]->ins[static_cast<std::size_t>(target)] + at, n);
    }
    exchange.publish(own);
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
               message + in_message(i, own[k]), n);
      clique.partials(group).release();
    }
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
  run.within_process();
  if (exchange.peers() == 1) return;
  const std::size_t tiles = std::max<std::size_t>(1, (bytes + run.tile - 1) / run.tile);
  const auto size = [&](std::size_t t) { return std::min(run.tile, bytes - t * run.tile); };
  for (std::size_t t = 0; t <= tiles; ++t) {
    if (t < tiles) run.send(t * run.tile, size(t));
    if (t > 0) run.receive((t - 1) * run.tile, size(t - 1));
  }
}

}  // namespace lockstep
