#include "transport/tcp/mesh.h"

#include <cstddef>
#include <map>

namespace lockstep {

std::vector<bool> deferred_connections(const std::vector<int>& hosts, int process) {
  std::map<int, std::size_t> size;  // processes of a host
  std::vector<std::size_t> index;   // of each process on its host
  for (const int host : hosts) index.push_back(size[host]++);
  const auto self = static_cast<std::size_t>(process);
  std::vector<bool> deferred;
  for (std::size_t other = 0; other < hosts.size(); ++other) {
    const bool forth = index[self] % size[hosts[other]] == index[other];
    const bool back = index[other] % size[hosts[self]] == index[self];
    deferred.push_back(hosts[other] != hosts[self] && !forth && !back);
  }
  return deferred;
}

}  // namespace lockstep
