// Reduce-scatter on several hosts. The processes of a host add up, in shared memory, what they have
// for one process of another host; one of them sends the sum there. So every result crosses once
// from each host. Small vectors are added up whole, by the all-reduce of log2 H messages.
#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives/between_hosts/blocks.h"
#include "collectives/between_hosts/host_collective.h"
#include "collectives/shared_work.h"

namespace lockstep {
namespace {

struct HostReduceScatter : HostCollective {
  const Call& first;
  const std::size_t width;
  std::vector<const std::byte*> sources;

  HostReduceScatter(CollectiveContext& x, Calls c)
      : HostCollective(x, c), first(*c[0]), width(size_of(first.dtype)) {}

  Blocks blocks_of(int group) const {
    return Blocks(clique, ranks_in(group).size(), first.bytes());
  }
  void add(std::byte* out, std::size_t bytes) {
    share_reduce(context, out, sources, bytes / width, first.dtype, first.reduction);
  }

  // What this process's ranks have for a message to the process of this group, added up at `out`.
  void add_own(int group, std::size_t message, std::byte* out) {
    blocks_of(group).for_each(
        message, [&](std::size_t part, std::size_t at, std::size_t n, std::size_t offset) {
          const auto rank = static_cast<std::size_t>(ranks_in(group)[part]);
          sources.clear();
          for (const Call* call : calls) sources.push_back(call->in + rank * first.bytes() + at);
          add(out + offset, n);
        });
  }

  // The results of this process: `with` adds what is in the message, or takes it as the first.
  template <typename With>
  void into_results(std::size_t message, With with) {
    blocks_of(clique.self())
        .for_each(message, [&](std::size_t part, std::size_t at, std::size_t n,
                               std::size_t offset) { with(calls[part]->out + at, offset, n); });
  }

  std::span<const std::byte> sum_for(int group, std::size_t message) {
    const Blocks blocks = blocks_of(group);
    std::byte* scratch = clique.scratch(std::max(Blocks::kTogether, clique.link_capacity()));
    if (calls.size() == 1)
      return blocks.gather(message, scratch, [&](std::size_t part) {
        const auto rank = static_cast<std::size_t>(ranks_in(group)[part]);
        return first.in + rank * first.bytes();
      });
    add_own(group, message, scratch);
    return {scratch, blocks.size(message)};
  }

  // Adds up what the local peers have, each in its message at the same offset.
  void add_local(const std::vector<const std::byte*>& messages, std::size_t offset, std::byte* out,
                 std::size_t bytes) {
    sources.clear();
    for (const std::byte* one : messages) sources.push_back(one + offset);
    add(out, bytes);
  }

  // All local peers publish what they have for one process; the one that is responsible adds it up.
  void publish_for(int group, std::size_t message, bool is_responsible) {
    const auto messages = context.await_partials(
        context.send_partials([&](std::byte* slot) { add_own(group, message, slot); }));
    if (is_responsible && group == clique.self()) {
      into_results(message, [&](std::byte* out, std::size_t offset, std::size_t n) {
        add_local(messages, offset, out, n);
      });
    } else if (is_responsible) {
      std::byte* scratch = clique.scratch(std::max(Blocks::kTogether, clique.link_capacity()));
      const std::size_t bytes = blocks_of(group).size(message);
      add_local(messages, 0, scratch, bytes);
      context.send(group, {scratch, bytes});
    }
    context.release_partials();
  }

  void send_to(int host, std::size_t message) {
    const auto& theirs = groups_of(host);
    const auto self = static_cast<std::size_t>(context.local_self());
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      if (message >= blocks_of(theirs[i]).messages()) continue;
      const bool is_responsible = i % clique.locals().size() == self;
      if (!is_alone())
        publish_for(theirs[i], message, is_responsible);
      else if (theirs[i] != clique.self())
        context.send(theirs[i], sum_for(theirs[i], message));
      else
        into_own_results(message);
    }
  }

  // A process that is alone on its host takes what a message brings.
  void into_own_results(std::size_t message) {
    blocks_of(clique.self())
        .for_each(message, [&](std::size_t part, std::size_t at, std::size_t n, std::size_t) {
          const auto rank = static_cast<std::size_t>(context.own_ranks()[part]);
          sources.clear();
          for (const Call* call : calls) sources.push_back(call->in + rank * first.bytes() + at);
          add(calls[part]->out + at, n);
        });
  }

  void receive_from(int host, std::size_t message) {
    const auto& theirs = groups_of(host);
    const int peer = theirs[static_cast<std::size_t>(context.local_self()) % theirs.size()];
    const std::byte* data = context.receive(peer);
    into_results(message, [&](std::byte* out, std::size_t offset, std::size_t n) {
      sources.assign({out, data + offset});
      add(out, n);
    });
    context.release(peer);
  }

  void run() {
    std::size_t messages = 0, sent = 0;
    for (int group = 0; group < static_cast<int>(clique.groups().size()); ++group)
      messages = std::max(messages, blocks_of(group).messages());
    for (std::size_t message = 0; message < messages; ++message) {
      for (; sent < std::min(messages, message + 2); ++sent)
        for (int step = 1; step <= hosts; ++step) send_to(host_behind(step), sent);  // itself last
      if (message < blocks_of(clique.self()).messages())
        for (int step = 1; step < hosts; ++step) receive_from(host_behind(-step), message);
      context.all_arrived();
    }
  }
};

}  // namespace

void reduce_scatter_pairwise(CollectiveContext& context, Calls calls) {
  HostReduceScatter(context, calls).run();
}

void reduce_scatter_recursive_doubling(CollectiveContext& context, Calls calls) {
  Clique& clique = context.clique();
  const std::size_t bytes = calls[0]->bytes();
  const std::size_t all = bytes * static_cast<std::size_t>(clique.size());
  std::byte* scratch = clique.scratch(all * calls.size());
  std::vector<Call> whole;
  for (const Call* call : calls) {
    whole.push_back(*call);
    whole.back().count *= static_cast<std::size_t>(clique.size());
    whole.back().out = scratch + (whole.size() - 1) * all;
  }
  std::vector<const Call*> pointers;
  for (const Call& call : whole) pointers.push_back(&call);
  all_reduce_recursive_doubling(context, pointers);
  for (std::size_t i = 0; i < calls.size() && bytes != 0; ++i)
    std::memcpy(calls[i]->out,
                whole[i].out + static_cast<std::size_t>(context.own_ranks()[i]) * bytes, bytes);
}

}  // namespace lockstep
