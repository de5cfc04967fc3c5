// Limits the rate at which each TCP connection of a process sends, as the networks of some clouds
// do (5 to 10 Gbit/s of a link of 100). For LD_PRELOAD; CONNECTION_BYTES_PER_SECOND is the limit.
//
//   cc -shared -fPIC -O2 -o limited_connections.so benchmarks/limited_connections.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

static int limited(int fd) {
  const char* text = getenv("CONNECTION_BYTES_PER_SECOND");
  if (fd >= 0 && text != NULL) {
    const unsigned long rate = strtoul(text, NULL, 10);
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  }
  return fd;
}

int connect(int fd, const struct sockaddr* address, socklen_t size) {
  int (*real)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  if (address->sa_family == AF_INET || address->sa_family == AF_INET6) limited(fd);
  return real(fd, address, size);
}

int accept(int fd, struct sockaddr* address, socklen_t* size) {
  int (*real)(int, struct sockaddr*, socklen_t*) = dlsym(RTLD_NEXT, "accept");
  return limited(real(fd, address, size));
}

int accept4(int fd, struct sockaddr* address, socklen_t* size, int flags) {
  int (*real)(int, struct sockaddr*, socklen_t*, int) = dlsym(RTLD_NEXT, "accept4");
  return limited(real(fd, address, size, flags));
}
