#include "transport/tcp/incoming.h"

#include <cstddef>

#include "base/error.h"

namespace lockstep {

bool Incoming::read() {
  using Result = Session::Result;
  std::size_t moved = 0;
  Channels::Filling filling;
  const Result result = session->read(frames.room(filling), moved);
  filling.end();
  if (result == Result::kWantsRead || result == Result::kWantsWrite) return false;
  if (result != Result::kDone) throw Error(session->problem());
  frames.take(moved);
  return true;
}

}  // namespace lockstep
