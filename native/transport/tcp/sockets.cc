#include "transport/tcp/sockets.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"

namespace lockstep {
namespace {

struct FreeAddress {
  void operator()(addrinfo* info) const { freeaddrinfo(info); }
};

std::unique_ptr<addrinfo, FreeAddress> parse(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) throw Error("not an address with a port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (code != 0) throw Error(gai_strerror(code));
  return std::unique_ptr<addrinfo, FreeAddress>(found);
}

// A message is small or complete: the kernel has nothing to wait for.
void send_at_once(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

// Host and port of one end; empty where there is none.
std::pair<std::string, std::string> text_of(int fd, int (*end)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (end(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return {host, port};
}

}  // namespace

Descriptor connect_to(const std::string& address, Clock::time_point end,
                      const std::function<void()>& check) {
  constexpr std::chrono::milliseconds kPollInterval{50};
  const auto info = parse(address);
  Descriptor made(socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made.get() < 0) throw Error(std::strerror(errno));
  send_at_once(made.get());
  if (connect(made.get(), info->ai_addr, info->ai_addrlen) == 0) return made;
  if (errno == ECONNREFUSED) throw Refused(std::strerror(errno));
  if (errno != EINPROGRESS) throw Error(std::strerror(errno));
  while (!wait_for(made.get(), true, std::min(end, Clock::now() + kPollInterval))) {
    if (Clock::now() >= end) throw Error("no answer");
    if (check) check();
  }
  int code = 0;
  socklen_t size = sizeof(code);
  getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &code, &size);
  if (code == ECONNREFUSED) throw Refused(std::strerror(code));
  if (code != 0) throw Error(std::strerror(code));
  return made;
}

Descriptor accept_from(int listener) {
  Descriptor made(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (made.get() >= 0) send_at_once(made.get());
  return made;
}

std::string address_of(int fd) {
  const auto [host, port] = text_of(fd, getsockname);
  if (host.empty()) return {};
  return host.find(':') == std::string::npos ? host + ":" + port : "[" + host + "]:" + port;
}

std::string name_of_peer(int fd) {
  const auto [host, port] = text_of(fd, getpeername);
  return host.empty() ? "an address that is not known any more" : host + " port " + port;
}

std::uint32_t machine_number() {
  static const std::uint32_t kNumber = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::uint32_t value = 0x811c9dc5;  // FNV-1a
    if (!(file >> id)) return 0u;
    for (const char c : id) value = (value ^ static_cast<unsigned char>(c)) * 0x01000193;
    return value;
  }();
  return kNumber;
}

void bound_send_buffer(int fd) {
  // A longer round trip is that of a network that a test makes slow, which needs more than the
  // buffer.
  constexpr std::uint32_t kFarMicroseconds = 200;
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  if (info.tcpi_min_rtt > kFarMicroseconds) return;
  const int bytes = kBoundedSendBuffer / 2;  // the system doubles it
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

bool is_closed(int fd) {
  pollfd asked{fd, POLLRDHUP, 0};
  return poll(&asked, 1, 0) > 0;
}

}  // namespace lockstep
