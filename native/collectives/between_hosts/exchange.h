// Messages between processes of different hosts: what is longer than a message goes in pieces, and
// a process receives one piece while the next ones are on their way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/collectives.h"

namespace lockstep {

// How both ends cut `bytes` bytes: pieces begin at multiples of 4096.
class Pieces : public Tiles {
 public:
  Pieces(const Clique& clique, std::size_t bytes)
      : Tiles(bytes, std::clamp((bytes / 4 + 4095) / 4096 * 4096, kLeast, clique.link_capacity())) {
  }

 private:
  // A smaller piece costs more than its overlap with the others saves.
  static constexpr std::size_t kLeast = 64 << 10;
};

// A shorter payload costs more to place than to copy.
inline constexpr std::size_t kPlacedFrom = 64 << 10;

// Posts receives at place(message) for the next messages of a peer, from number `posted` on, as far
// as is possible now.
template <typename Place>
void post_receives(CollectiveContext& context, int from, std::size_t messages, Place place,
                   std::size_t& posted) {
  for (; posted < messages; ++posted) {
    std::span<std::byte> to = place(posted);
    if (to.size() < kPlacedFrom) to = {};
    if (!context.post_receive(from, to)) return;
  }
}
// Posts the room of pieces as well, if `take` knows where it would copy them: take.place(at,
// bytes).
template <typename Take>
void post_pieces(CollectiveContext& context, int from, const Pieces& pieces, const Take& take,
                 std::size_t& posted) {
  if constexpr (requires { take.place(std::size_t{}, std::size_t{}); })
    post_receives(
        context, from, pieces.count(),
        [&](std::size_t i) { return take.place(pieces.at(i), pieces.size(i)); }, posted);
}

// One process of each host, by the indices of their groups, in the order of the hosts.
struct Team {
  std::vector<int> peers;
  int self;

  int size() const { return static_cast<int>(peers.size()); }
  int peer(int member) const { return peers[static_cast<std::size_t>(member)]; }
  // The member that comes `step` behind this one; before it if negative. At most once around.
  int behind(int step) const { return (self + step + size()) % size(); }
};

// The processes with this index on their hosts, which all have one.
Team team_of(const Clique& clique, int column);

// The `make` of data that are there from the start: it has nothing to do.
struct IsReady {
  void operator()(auto...) const {}
};

// Sends `out` to one peer and receives `bytes` from another one (or the same), at the same time.
// take(piece, at, bytes) gets what comes; what it overwrites of `out` has been sent before. A
// `take` with a place overwrites nothing of `out`. make(at, bytes) is called before that part of
// `out` is sent; where as many bytes come as go, also before the same part of them is taken.
template <typename Take, typename Make = IsReady>
void exchange(CollectiveContext& context, int to, std::span<const std::byte> out, int from,
              std::size_t bytes, Take take, Make make = {}) {
  const Pieces outgoing(context.clique(), out.size()), incoming(context.clique(), bytes);
  std::size_t sent = 0, posted = 0;
  const auto send_until = [&](std::size_t end) {
    for (; sent < std::min(end, outgoing.count()); ++sent) {
      make(outgoing.at(sent), outgoing.size(sent));
      context.send(to, out.subspan(outgoing.at(sent), outgoing.size(sent)));
    }
  };
  for (std::size_t i = 0; i < incoming.count(); ++i) {
    post_pieces(context, from, incoming, take, posted);
    send_until(i + 2);  // of four that may be on their way
    take(context.receive(from), incoming.at(i), incoming.size(i));
    context.release(from);
  }
  send_until(outgoing.count());
}

// `exchange` without what comes, and without what is sent.
template <typename Make = IsReady>
void send_all(CollectiveContext& context, int to, std::span<const std::byte> out, Make make = {}) {
  const Pieces pieces(context.clique(), out.size());
  for (std::size_t i = 0; i < pieces.count(); ++i) {
    make(pieces.at(i), pieces.size(i));
    context.send(to, out.subspan(pieces.at(i), pieces.size(i)));
  }
}
template <typename Take>
void receive_all(CollectiveContext& context, int from, std::size_t bytes, Take take) {
  const Pieces pieces(context.clique(), bytes);
  std::size_t posted = 0;
  for (std::size_t i = 0; i < pieces.count(); ++i) {
    post_pieces(context, from, pieces, take, posted);
    take(context.receive(from), pieces.at(i), pieces.size(i));
    context.release(from);
  }
}

// Exchanges data with all other members at once: out(member) goes to each, and in_bytes(member)
// come from each. Every member begins with another one. take(member, step, piece, at, bytes):
// `step` counts the members from 1 on. make(member, at, bytes) is called before that part of
// out(member) is sent.
template <typename Out, typename InBytes, typename Take, typename Make = IsReady>
void exchange_with_team(CollectiveContext& context, const Team& team, Out out, InBytes in_bytes,
                        Take take, Make make = {}) {
  std::size_t sent = 0, all = 0;
  for (int step = 1; step < team.size(); ++step)
    all = std::max({all, Pieces(context.clique(), out(team.behind(step)).size()).count(),
                    Pieces(context.clique(), in_bytes(team.behind(step))).count()});
  const auto send_until = [&](std::size_t end) {
    for (; sent < std::min(end, all); ++sent)
      for (int step = 1; step < team.size(); ++step) {
        const std::span<const std::byte> bytes = out(team.behind(step));
        const Pieces pieces(context.clique(), bytes.size());
        if (sent >= pieces.count()) continue;
        make(team.behind(step), pieces.at(sent), pieces.size(sent));
        context.send(team.peer(team.behind(step)),
                     bytes.subspan(pieces.at(sent), pieces.size(sent)));
      }
  };
  for (std::size_t i = 0; i < all; ++i) {
    send_until(i + 2);
    for (int step = 1; step < team.size(); ++step) {
      const int member = team.behind(-step);
      const Pieces pieces(context.clique(), in_bytes(member));
      if (i >= pieces.count()) continue;
      take(member, step, context.receive(team.peer(member)), pieces.at(i), pieces.size(i));
      context.release(team.peer(member));
    }
  }
}

}  // namespace lockstep
