// The socket on which a process listens for those of other hosts. Used by the progress thread.
#pragma once

#include <string>

#include "transport/tcp/sockets.h"

namespace lockstep {

class Acceptor {
 public:
  // Duplicates the socket and has `epoll` watch it. Throws Error.
  Acceptor(int listener, int epoll);

  // The next connection, or -1. Without a free file descriptor there is none before `resume`.
  Descriptor accept();
  void resume();
  void close();
  // In a forked child: closes its copy of the descriptor.
  void abandon() { listener_ = Descriptor(); }

  bool is_open() const { return listener_.get() >= 0; }
  // "10.0.0.1:4411"; also when the port is closed again.
  const std::string& address() const { return address_; }

 private:
  Descriptor listener_;
  const int epoll_;
  const std::string address_;
  bool is_watched_ = true;
};

}  // namespace lockstep
