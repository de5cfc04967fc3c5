#include "control/network/mesh.h"

#include <bit>
#include <cstddef>
#include <map>

namespace lockstep {

std::vector<bool> deferred_connections(const std::vector<int>& hosts, int num_agents, int member) {
  struct Host {
    unsigned place;    // in the order of their first processes
    std::size_t size;  // its processes
  };
  std::map<int, Host> known;
  const std::size_t first_agent = hosts.size() - static_cast<std::size_t>(num_agents);
  std::vector<std::size_t> index;  // of each process on its host; of an agent 0
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto place = static_cast<unsigned>(known.size());
    Host& host = known.try_emplace(hosts[i], Host{place, 0}).first->second;
    index.push_back(i < first_agent ? host.size++ : 0);
  }
  const auto self = static_cast<std::size_t>(member);
  const auto starts_with = [&](std::size_t one, std::size_t other) {  // the same both ways
    const Host its = known.at(hosts[one]), others = known.at(hosts[other]);
    if (!std::has_single_bit(its.place ^ others.place)) return false;
    return one >= first_agent || other >= first_agent || index[one] % others.size == index[other] ||
           index[other] % its.size == index[one];
  };
  std::vector<bool> deferred;
  for (std::size_t other = 0; other < hosts.size(); ++other)
    deferred.push_back(hosts[self] != hosts[other] && !starts_with(self, other));
  return deferred;
}

}  // namespace lockstep
