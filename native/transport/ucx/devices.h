// Which network devices UCX is given.
#pragma once

#include <string>

#include "transport/ucx/library.h"

namespace lockstep::ucp {

struct Devices {
  std::string chosen;   // for UCX's setting NET_DEVICES; "": UCX's own choice
  std::string warning;  // for the user; "": none
};

// UCX's own choice is all devices. UCX before 1.14 can crash when it uses more than one network
// interface with TCP, and loopback counts. Such a UCX is limited to the interface of `listener`'s
// address, by which the other hosts reach this process; with a device of InfiniBand or RoCE it is
// not limited, and there is a warning. UCX_NET_DEVICES in the environment overrides both.
Devices choose_devices(const Library& library, int listener);

// The network interface that has a socket's own address, "eth0"; "" where there is none that UCX
// could use.
std::string device_of(int fd);

}  // namespace lockstep::ucp
