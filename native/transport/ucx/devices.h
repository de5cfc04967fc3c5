// Which network devices UCX is given.
#pragma once

#include <string>

#include "transport/ucx/library.h"

namespace lockstep::ucp {

struct Devices {
  std::string chosen;   // for UCX's setting NET_DEVICES; "": UCX's own choice
  std::string warning;  // for the user; "": none
};

// UCX's own choice is all devices, which crashes UCX before 1.14 now and then when two processes
// connect to each other over several TCP networks at a time. A host without InfiniBand or RoCE then
// uses the one network of `listener`, by which the other hosts reach this process anyway.
Devices choose_devices(const Library& library, int listener);

// The network device that has a socket's own address, "eth0"; "" where there is none.
std::string device_of(int fd);

}  // namespace lockstep::ucp
