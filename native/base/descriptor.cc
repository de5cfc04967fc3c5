#include "base/descriptor.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace lockstep {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

NoBrokenPipe::NoBrokenPipe() {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  blocked_ = !sigismember(&before, SIGPIPE);
}

NoBrokenPipe::~NoBrokenPipe() {
  if (!blocked_) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec at_once{};
  while (sigtimedwait(&pipe, nullptr, &at_once) > 0) {  // it was sent to this thread
  }
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

bool watch_input(int epoll, int fd, void* owner) {
  epoll_event event{EPOLLIN, {.ptr = owner}};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool wait_for(int fd, bool to_write, Clock::time_point end) {
  pollfd asked{fd, static_cast<short>(to_write ? POLLOUT : POLLIN), 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return poll(&asked, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000))) > 0;
}

}  // namespace lockstep
