// What the collectives between hosts have in common: the hosts of the clique, counted from this
// one.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/collectives.h"

namespace lockstep {

struct HostCollective : Collective {
  const int hosts;

  HostCollective(CollectiveContext& x, Calls c)
      : Collective(x, c), hosts(static_cast<int>(clique.hosts().size())) {}

  const std::vector<int>& groups_of(int host) const {
    return clique.hosts()[static_cast<std::size_t>(host)];
  }
  const std::vector<int>& ranks_in(int group) const { return clique.group(group).ranks; }
  // The host that comes `step` behind this one; before it if negative.
  int host_behind(int step) const { return ((clique.self_host() + step) % hosts + hosts) % hosts; }
  std::size_t ranks_of(int host) const {
    std::size_t count = 0;
    for (const int group : groups_of(host)) count += ranks_in(group).size();
    return count;
  }
};

}  // namespace lockstep
