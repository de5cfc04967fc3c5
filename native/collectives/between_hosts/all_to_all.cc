// All-to-all on several hosts. Large blocks go from each process straight to each process of other
// hosts. Small ones are put together: the first process of a host has all blocks of its host, and
// exchanges them with those of other hosts by Bruck's algorithm, in log2 H messages (Bruck et al.,
// 1997: see all_gather.cc).
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/copy.h"
#include "collectives/between_hosts/blocks.h"
#include "collectives/between_hosts/host_collective.h"

namespace lockstep {
namespace {

// The least bytes of a block in a piece: to begin and end a shorter copy takes as long as the copy.
constexpr std::size_t kLeastPiece = 64 << 10;

struct HostAllToAll : HostCollective {
  const std::size_t bytes;  // of one block
  const OutputCopy copy;
  const bool is_in_place = some_result_is_an_input();
  std::vector<std::size_t> posted;  // messages, by the group they come from

  HostAllToAll(CollectiveContext& x, Calls c)
      : HostCollective(x, c),
        bytes(c[0]->bytes()),
        copy(bytes * static_cast<std::size_t>(clique.size()) * c.size()),
        posted(clique.groups().size()) {}

  // A part for each pair of a rank of one process and a rank of the other one: the sender's rank
  // is the row.
  Blocks blocks_with(int group) const {
    return Blocks(clique, calls.size() * ranks_in(group).size(), bytes);
  }
  const std::byte* block_for(std::size_t member, int rank) const {
    return calls[member]->ins[static_cast<std::size_t>(rank)];
  }
  std::byte* block_of(std::size_t member, int rank) const {
    return calls[member]->outs[static_cast<std::size_t>(rank)];
  }

  void within_host() {
    is_alone() ? all_to_all_local(context, calls) : all_to_all_direct(context, calls);
  }

  void send(int group, std::size_t message) {
    const Blocks blocks = blocks_with(group);
    if (message >= blocks.messages()) return;
    const auto& theirs = ranks_in(group);
    const auto data =
        blocks.gather(message, clique.scratch(Blocks::kTogether), [&](std::size_t part) {
          return block_for(part / theirs.size(), theirs[part % theirs.size()]);
        });
    context.send(group, data);
  }

  void receive(int group, std::size_t message) {
    const Blocks blocks = blocks_with(group);
    if (message >= blocks.messages()) return;
    const std::byte* data = context.receive(group);
    blocks.for_each(message,
                    [&](std::size_t part, std::size_t at, std::size_t n, std::size_t offset) {
                      std::byte* const to = target_of(group, part) + at;
                      if (to != data + offset) copy(to, data + offset, n);
                    });
    context.release(group);
    post(group);
  }
  std::byte* target_of(int group, std::size_t part) const {
    return block_of(part % calls.size(), ranks_in(group)[part / calls.size()]);
  }

  void post(int group) {
    if (is_in_place) return;
    const Blocks blocks = blocks_with(group);
    post_receives(
        context, group, blocks.messages(),
        [&](std::size_t message) {
          return blocks.place(message, [&](std::size_t part) { return target_of(group, part); });
        },
        posted[static_cast<std::size_t>(group)]);
  }
  // What comes may then overwrite what is yet to be sent, unless it waits in its slot.
  bool some_result_is_an_input() const {
    std::vector<const std::byte*> inputs;
    for (const Call* call : calls) inputs.insert(inputs.end(), call->ins.begin(), call->ins.end());
    std::ranges::sort(inputs);
    return std::ranges::any_of(calls, [&](const Call* call) {
      return std::ranges::any_of(
          call->outs, [&](std::byte* out) { return std::ranges::binary_search(inputs, out); });
    });
  }

  // What stays on this host, while `message`, of so many, is on its way. A process that is alone
  // copies a piece for each message, unless a result lies over an input. Several wait for each
  // other, and not all have as many messages: they finish at the first one.
  void within_host(std::size_t message, std::size_t messages) {
    if (!is_alone()) {
      if (message == 0) all_to_all_direct_finish(context, calls);
      return;
    }
    const std::size_t even = ((bytes + messages - 1) / messages + 4095) / 4096 * 4096;
    const std::size_t piece = is_in_place ? bytes : std::max(kLeastPiece, even);
    const std::size_t at = std::min(bytes, message * piece);
    if (at < bytes) all_to_all_local_part(context, calls, at, std::min(piece, bytes - at));
  }

  void run() {
    for (int step = 1; step < hosts; ++step)
      for (const int group : groups_of(host_behind(-step))) post(group);
    // Before the first message, as in an all-gather.
    if (!is_alone()) all_to_all_direct_begin(context, calls);
    std::size_t messages = 0, sent = 0;
    for (int step = 1; step < hosts; ++step)
      for (const int group : groups_of(host_behind(step)))
        messages = std::max(messages, blocks_with(group).messages());
    for (std::size_t message = 0; message < messages; ++message) {
      for (; sent < std::min(messages, message + 2); ++sent)
        for (int step = 1; step < hosts; ++step)
          for (const int group : groups_of(host_behind(step))) send(group, sent);
      within_host(message, messages);
      for (int step = 1; step < hosts; ++step)
        for (const int group : groups_of(host_behind(-step))) receive(group, message);
      context.all_arrived();
    }
  }

  // What follows is for small blocks. Between two hosts they are ordered by source process, target
  // process, source rank, target rank.
  std::size_t between(int source, int target) const {
    return ranks_of(source) * ranks_of(target) * bytes;
  }

  // This process's blocks for other hosts, host after host.
  void pack_own(std::byte* to) const {
    for (int step = 1; step < hosts; ++step)
      for (const int group : groups_of(host_behind(step)))
        for (std::size_t member = 0; member < calls.size(); ++member)
          for (const int rank : ranks_in(group)) {
            if (bytes != 0) std::memcpy(to, block_for(member, rank), bytes);
            to += bytes;
          }
  }

  // The blocks that one member holds, each for another host: at index i those which go i hosts on.
  struct Held {
    std::vector<std::vector<std::byte>> blocks;
  };

  // Puts together what the processes of this host have packed.
  Held collect(const std::vector<const std::byte*>& packed) const {
    Held held{std::vector<std::vector<std::byte>>(static_cast<std::size_t>(hosts))};
    for (std::size_t local = 0; local < packed.size(); ++local) {
      const std::size_t rows = ranks(static_cast<int>(local)).size();
      const std::byte* from = packed[local];
      for (int step = 1; step < hosts; ++step) {
        const std::size_t n = rows * ranks_of(host_behind(step)) * bytes;
        auto& block = held.blocks[static_cast<std::size_t>(step)];
        block.insert(block.end(), from, from + n);
        from += n;
      }
    }
    return held;
  }

  // A block moves by the powers of two in its index, the lowest first.
  void cross(Held& held) {
    const Team team = team_of(clique, 0);
    for (int distance = 1; distance < hosts; distance *= 2) {
      std::vector<std::byte> outgoing;
      std::size_t expected = 0;
      const auto size_of_incoming = [&](int index) {
        const int source = host_behind(-distance - (index & (distance - 1)));
        return between(source, (source + index) % hosts);
      };
      for (int index = distance; index < hosts; ++index) {
        if ((index & distance) == 0) continue;
        const auto& block = held.blocks[static_cast<std::size_t>(index)];
        outgoing.insert(outgoing.end(), block.begin(), block.end());
        expected += size_of_incoming(index);
      }
      std::vector<std::byte> incoming(expected);
      exchange(context, team.peer(team.behind(distance)), outgoing,
               team.peer(team.behind(-distance)), expected,
               [&](const std::byte* piece, std::size_t first, std::size_t n) {
                 if (n != 0) std::memcpy(incoming.data() + first, piece, n);
               });
      auto from = incoming.begin();
      for (int index = distance; index < hosts; ++index) {
        if ((index & distance) == 0) continue;
        const auto end = from + static_cast<std::ptrdiff_t>(size_of_incoming(index));
        held.blocks[static_cast<std::size_t>(index)].assign(from, end);
        from = end;
      }
    }
    context.all_arrived();
  }

  // Takes this process's blocks out of those from the host `step` before this one.
  void unpack(int step, const std::byte* from) {
    for (const int source : groups_of(host_behind(-step)))
      for (const int target : clique.locals())
        for (const int row : ranks_in(source))
          for (std::size_t member = 0; member < ranks_in(target).size(); ++member, from += bytes)
            if (target == clique.self()) copy(block_of(member, row), from, bytes);
  }

  void run_small() {
    within_host();
    std::size_t own_bytes = 0;
    for (int step = 1; step < hosts; ++step)
      own_bytes += calls.size() * ranks_of(host_behind(step)) * bytes;
    if (is_alone()) {
      std::byte* packed = clique.scratch(own_bytes);
      pack_own(packed);
      Held held = collect({packed});
      cross(held);
      for (int step = 1; step < hosts; ++step)
        unpack(step, held.blocks[static_cast<std::size_t>(step)].data());
      return;
    }
    const auto packed = context.await_partials(
        context.send_partials([&](std::byte* message) { pack_own(message); }));
    BroadcastRing& results = clique.results(0);
    const bool leads = context.local_self() == 0;
    Held held = leads ? collect(packed) : Held{};
    context.release_partials();
    if (leads) {
      cross(held);
      std::byte* all = context.acquire(results);
      for (const auto& block : held.blocks) all = std::ranges::copy(block, all).out;
      context.publish(results);
      for (int step = 1; step < hosts; ++step)
        unpack(step, held.blocks[static_cast<std::size_t>(step)].data());
      return;
    }
    const std::byte* all = context.await(results);
    for (int step = 1; step < hosts; ++step) {
      unpack(step, all);
      all += between(host_behind(-step), clique.self_host());
    }
    results.release();
    context.all_arrived();
  }
};

}  // namespace

void all_to_all_pairwise(CollectiveContext& context, Calls calls) {
  HostAllToAll(context, calls).run();
}

void all_to_all_bruck(CollectiveContext& context, Calls calls) {
  HostAllToAll(context, calls).run_small();
}

bool all_to_all_is_small(const Clique& clique, std::size_t bytes) {
  std::size_t most = 0;
  for (const auto& host : clique.hosts()) {
    std::size_t ranks = 0;
    for (const int group : host) ranks += clique.group(group).ranks.size();
    most = std::max(most, ranks);
  }
  return most * static_cast<std::size_t>(clique.size()) * bytes <= kSmallBetweenHosts;
}

}  // namespace lockstep
