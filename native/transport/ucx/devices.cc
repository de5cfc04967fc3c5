#include "transport/ucx/devices.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

namespace lockstep::ucp {
namespace {

constexpr const char* kVariable = "UCX_NET_DEVICES";

// Finds a device of InfiniBand, RoCE or the like that programs may open: a container sees those of
// its host in /sys.
bool has_rdma_device() {
  std::error_code error;
  for (const auto& each : std::filesystem::directory_iterator("/dev/infiniband", error))
    if (each.path().filename().string().starts_with("uverbs")) return true;
  return false;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

bool same_address(const sockaddr& one, const sockaddr& other) {
  if (one.sa_family != other.sa_family) return false;
  if (one.sa_family == AF_INET) {
    const auto of = [](const sockaddr& any) {
      return reinterpret_cast<const sockaddr_in&>(any).sin_addr.s_addr;
    };
    return of(one) == of(other);
  }
  if (one.sa_family != AF_INET6) return false;
  const auto of = [](const sockaddr& any) {
    return &reinterpret_cast<const sockaddr_in6&>(any).sin6_addr;
  };
  return std::memcmp(of(one), of(other), sizeof(in6_addr)) == 0;
}

}  // namespace

std::string device_of(int fd) {
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  ifaddrs* all = nullptr;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0 || getifaddrs(&all) != 0)
    return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    if (!same_address(*each->ifa_addr, reinterpret_cast<const sockaddr&>(own))) continue;
    // Routed networks put a host's address there; UCX would take 127.0.0.1 for the device's.
    if ((each->ifa_flags & IFF_LOOPBACK) != 0 && !is_loopback(*each->ifa_addr)) continue;
    const std::string name = each->ifa_name;
    return name.substr(0, name.find(':'));  // without the label of a second address
  }
  return {};
}

Devices choose_devices(const Library& library, int listener) {
  if (library.takes_several_networks() || std::getenv(kVariable) != nullptr) return {};
  if (!has_rdma_device())
    if (std::string device = device_of(listener); !device.empty()) return {std::move(device), {}};
  return {{},
          "lockstep: UCX " + library.version() +
              " can crash when it uses several network interfaces with TCP, loopback among them. "
              "Choose one (" +
              kVariable +
              "), or use UCX 1.14 or newer (pip install libucx-cu12, LOCKSTEP_UCX_LIBRARY)."};
}

}  // namespace lockstep::ucp
