// What the endpoint needs of TCP sockets: all are non-blocking, and every wait has an end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/futex_wait.h"

namespace lockstep {

// Nothing listens there.
class Refused : public Error {
 public:
  using Error::Error;
};

// A connection to a numeric address, "10.0.0.1:4411" or "[fe80::1]:4411". Throws Error with the
// system's reason when there is none by then, Refused for one of these reasons, and what `check`
// throws, which is called meanwhile.
Descriptor connect_to(const std::string& address, Clock::time_point end,
                      const std::function<void()>& check = {});

// The next connection of a listening socket; -1 when there is none.
Descriptor accept_from(int listener);

// The address at which a socket listens, in the form that `connect_to` takes.
std::string address_of(int fd);

// The address of the other end.
std::string name_of_peer(int fd);

// Tells machines apart: the same in all containers and network namespaces of one. 0: not known.
std::uint32_t machine_number();

// Lets a connection to a process of the same machine, on which nothing big was sent yet, hold
// little, unless the way is made longer than it is. What is sent then stays in a cache until
// it is read; the system's own choice lets some MiB be on their way, which is slower than memory.
void bound_send_buffer(int fd);
// What such a connection holds, with the system's own data.
inline constexpr int kBoundedSendBuffer = 256 << 10;

// Whether the other end, which sends nothing, has closed the connection.
bool is_closed(int fd);

}  // namespace lockstep
