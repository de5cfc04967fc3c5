#include "transport/tcp/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace lockstep {

Acceptor::Acceptor(int listener, int epoll)
    : listener_(fcntl(listener, F_DUPFD_CLOEXEC, 0)),
      epoll_(epoll),
      address_(address_of(listener)) {
  if (listener_.get() < 0 || !watch_input(epoll_, listener_.get(), nullptr))
    throw Error(std::string("lockstep: cannot watch for other hosts: ") + std::strerror(errno) +
                ".");
  fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
}

std::vector<Descriptor> Acceptor::accept_some() {
  std::vector<Descriptor> accepted;
  while (is_open() && accepted.size() < kMaxAccepts) {
    Descriptor fd = accept_from(listener_.get());
    if (fd.get() < 0) {
      if (errno == EAGAIN) break;
      // The socket would stay readable and keep the thread busy.
      epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_.get(), nullptr);
      is_watched_ = false;
      break;
    }
    accepted.push_back(std::move(fd));
  }
  return accepted;
}

void Acceptor::resume() {
  if (!is_watched_ && is_open()) is_watched_ = watch_input(epoll_, listener_.get(), nullptr);
}

void Acceptor::close() {
  // Other processes have copies of the descriptor, so closing this one does not close the port.
  shutdown(listener_.get(), SHUT_RDWR);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, listener_.get(), nullptr);
  listener_ = Descriptor();
}

}  // namespace lockstep
