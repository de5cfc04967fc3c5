#include "collectives/between_hosts/exchange.h"

namespace lockstep {

Team team_of(const Clique& clique, int column) {
  Team team{{}, clique.self_host()};
  for (const auto& host : clique.hosts())
    team.peers.push_back(host[static_cast<std::size_t>(column)]);
  return team;
}

}  // namespace lockstep
