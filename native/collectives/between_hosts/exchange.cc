#include "collectives/between_hosts/exchange.h"

namespace lockstep {

Team team_of(const Clique& clique, int column) {
  Team team{{}, clique.self_host()};
  for (const auto& host : clique.hosts())
    team.peers.push_back(host[static_cast<std::size_t>(column)]);
  return team;
}

void send_all(CollectiveContext& context, int to, std::span<const std::byte> out) {
  const Pieces pieces(context.clique(), out.size());
  for (std::size_t i = 0; i < pieces.count(); ++i)
    context.send(to, out.subspan(pieces.at(i), pieces.size(i)));
}

}  // namespace lockstep
