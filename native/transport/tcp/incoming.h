// A connection that another process has opened, from the moment it is taken. One thread at a time
// uses it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/futex_wait.h"
#include "transport/tcp/frame_parser.h"
#include "transport/tcp/session.h"
#include "transport/tcp/sockets.h"

namespace lockstep {

struct Incoming {
  Incoming(Descriptor taken, FrameParser parser)
      : fd(std::move(taken)), address(name_of_peer(fd.get())), frames(std::move(parser)) {}

  // Takes what comes. False when there is nothing more to read now; throws Error when the
  // connection has ended or breaks the rules.
  bool read();

  Descriptor fd;
  std::unique_ptr<Session> session;
  const std::string address;
  const Clock::time_point since = Clock::now();
  bool authenticated = false;
  FrameParser frames;
};

}  // namespace lockstep
