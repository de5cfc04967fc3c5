// All-gather on several hosts. Every part crosses once to each host: a process sends those of its
// ranks to one process of each other host, which hands them on in shared memory. Small parts go by
// Bruck's algorithm between the first processes of the hosts, in log2 H messages (Bruck, Ho,
// Kipnis, Upfal, Weathersby, "Efficient Algorithms for All-to-All Communications in Multiport
// Message-Passing Systems", 1997).
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/copy.h"
#include "collectives/between_hosts/blocks.h"
#include "collectives/between_hosts/host_collective.h"
#include "collectives/shared_work.h"

namespace lockstep {
namespace {

struct HostAllGather : HostCollective {
  const std::size_t bytes;  // of one rank's part
  const OutputCopy copy;
  std::vector<std::size_t> posted;  // messages, by the group they come from

  HostAllGather(CollectiveContext& x, Calls c)
      : HostCollective(x, c),
        bytes(c[0]->bytes()),
        copy(bytes * static_cast<std::size_t>(clique.size()) * c.size()),
        posted(clique.groups().size()) {}

  Blocks blocks_of(int group) const { return Blocks(clique, ranks_in(group).size(), bytes); }

  void give_to_ranks(const std::byte* part, int rank, std::size_t at, std::size_t n) {
    share_each(context, calls.size(), 2 * n, [&](std::size_t i) {
      std::byte* const to = calls[i]->out + static_cast<std::size_t>(rank) * bytes + at;
      if (to != part) copy(to, part, n);
    });
  }
  void give_message(int group, std::size_t message, const std::byte* data) {
    blocks_of(group).for_each(
        message, [&](std::size_t part, std::size_t at, std::size_t n, std::size_t offset) {
          give_to_ranks(data + offset, ranks_in(group)[part], at, n);
        });
  }

  // The processes of a host whose parts come to the local peer with this index.
  std::vector<int> sources(int host, int local) const {
    std::vector<int> found;
    const auto& theirs = groups_of(host);
    for (std::size_t i = static_cast<std::size_t>(local); i < theirs.size();
         i += clique.locals().size())
      found.push_back(theirs[i]);
    return found;
  }

  void send(std::size_t message) {
    const Blocks blocks = blocks_of(clique.self());
    if (message >= blocks.messages()) return;
    std::byte* scratch = clique.scratch(Blocks::kTogether);
    const auto data =
        blocks.gather(message, scratch, [&](std::size_t part) { return calls[part]->in; });
    const auto index = static_cast<std::size_t>(clique.local_self());
    for (int step = 1; step < hosts; ++step) {
      const auto& theirs = groups_of(host_behind(step));
      context.send(theirs[index % theirs.size()], data);
    }
  }

  // Takes the message of a process of another host, and hands it on to the local peers.
  void receive(int group, std::size_t message) {
    const std::byte* data = context.receive(group);
    if (!is_alone()) {
      BroadcastRing& own = clique.results(context.local_self());
      std::byte* slot = context.acquire(own);
      std::memcpy(slot, data, blocks_of(group).size(message));
      context.publish(own);
    }
    give_message(group, message, data);
    context.release(group);
    post(group);
  }

  // Posts receives for the parts of a process that come to this one.
  void post(int group) {
    const Blocks blocks = blocks_of(group);
    post_receives(
        context, group, blocks.messages(),
        [&](std::size_t message) {
          return blocks.place(message, [&](std::size_t part) {
            const auto rank = static_cast<std::size_t>(ranks_in(group)[part]);
            return calls[0]->out + rank * bytes;
          });
        },
        posted[static_cast<std::size_t>(group)]);
  }

  // Every local peer hands on one message before any hands on the next: each finds room, since the
  // others have taken the one before.
  void receive_from(int host, std::size_t message) {
    std::size_t most = 0;
    for (int local = 0; local < context.locals(); ++local)
      most = std::max(most, sources(host, local).size());
    for (std::size_t i = 0; i < most; ++i)
      for (int step = 0; step < context.locals(); ++step) {
        const int local = (context.local_self() + step) % context.locals();
        const auto theirs = sources(host, local);
        if (i >= theirs.size() || message >= blocks_of(theirs[i]).messages()) continue;
        if (step == 0) {
          receive(theirs[i], message);
          continue;
        }
        give_message(theirs[i], message, context.await(clique.results(local)));
        clique.results(local).release();
      }
  }

  // How many of the steps of the exchange within this host are done before `message`, of so many,
  // is received. The processes of a host wait for each other in these steps, and for messages
  // between them, so all of them need the same number of messages. Two before the first one: after
  // them all have arrived.
  static std::size_t steps_before(std::size_t message, std::size_t messages, std::size_t steps) {
    const std::size_t even = (steps * (message + 1) + messages - 1) / messages;
    return std::min(steps, std::max<std::size_t>(2, even));
  }

  void run() {
    for (int step = 1; step < hosts; ++step)
      for (const int group : sources(host_behind(-step), context.local_self())) post(group);
    const std::size_t steps = all_gather_steps(context, calls);
    std::size_t messages = 0, sent = 0, done = 0;
    // Before the first message, which may have to wait for another host: the others of this host
    // would take this process for the one that is missing.
    if (!is_alone()) all_gather_step(context, calls, done++);
    for (int group = 0; group < static_cast<int>(clique.groups().size()); ++group)
      messages = std::max(messages, blocks_of(group).messages());
    for (std::size_t message = 0; message < messages; ++message) {
      while (sent < std::min(messages, message + 2)) send(sent++);
      while (done < steps_before(message, messages, steps)) all_gather_step(context, calls, done++);
      for (int step = 1; step < hosts; ++step) receive_from(host_behind(-step), message);
      context.all_arrived();
    }
  }

  // What follows is for small parts: all of them together are one message.
  std::size_t host_bytes(int host) const { return ranks_of(host) * bytes; }
  void pack_own(std::byte* to) const {
    for (std::size_t i = 0; i < calls.size() && bytes != 0; ++i)
      std::memcpy(to + i * bytes, calls[i]->in, bytes);
  }

  // The first process of the host: the parts of the host, process by process, at `to`.
  void collect_host(std::byte* to) {
    pack_own(to);
    to += calls.size() * bytes;
    context.take_partials([&](int local, const std::byte* parts) {
      const std::size_t theirs = ranks(local).size() * bytes;
      if (theirs != 0) std::memcpy(to, parts, theirs);
      to += theirs;
    });
  }

  // The parts of all hosts at `all`, which begins with this host's, in a ring. A step doubles them.
  void cross(std::byte* all) {
    std::vector<std::size_t> start{0};
    for (int step = 0; step < hosts; ++step)
      start.push_back(start.back() + host_bytes(host_behind(step)));
    const Team team = team_of(clique, 0);
    for (int distance = 1; distance < hosts; distance *= 2) {
      const int count = std::min(distance, hosts - distance);
      const auto at = [&](int step) { return start[static_cast<std::size_t>(step)]; };
      std::byte* to = all + at(distance);
      // What the member before this one lacks are the blocks from its `distance` on: the first
      // here.
      std::size_t outgoing = 0;
      for (int step = 0; step < count; ++step) outgoing += host_bytes(host_behind(step));
      exchange(context, team.peer(team.behind(-distance)), {all, outgoing},
               team.peer(team.behind(distance)), at(distance + count) - at(distance),
               [&](const std::byte* piece, std::size_t first, std::size_t n) {
                 if (n != 0) std::memcpy(to + first, piece, n);
               });
    }
    context.all_arrived();
  }

  // `all` begins with the parts of this host.
  void give_all(const std::byte* all) {
    for (int step = 0; step < hosts; ++step)
      for (const int group : groups_of(host_behind(step)))
        for (const int rank : ranks_in(group)) {
          give_to_ranks(all, rank, 0, bytes);
          all += bytes;
        }
  }

  void run_small() {
    const bool leads = context.local_self() == 0;
    if (is_alone()) {
      std::byte* all = clique.scratch(static_cast<std::size_t>(clique.size()) * bytes);
      pack_own(all);
      cross(all);
      return give_all(all);
    }
    context.send_partials([&](std::byte* message) { pack_own(message); });
    BroadcastRing& results = clique.results(0);
    if (leads) {
      std::byte* all = context.acquire(results);
      collect_host(all);
      cross(all);
      context.publish(results);
      return give_all(all);
    }
    context.take_partials([](int, const std::byte*) {});
    give_all(context.await(results));
    results.release();
    context.all_arrived();
  }
};

}  // namespace

void all_gather_pairwise(CollectiveContext& context, Calls calls) {
  HostAllGather(context, calls).run();
}

void all_gather_bruck(CollectiveContext& context, Calls calls) {
  HostAllGather(context, calls).run_small();
}

}  // namespace lockstep
