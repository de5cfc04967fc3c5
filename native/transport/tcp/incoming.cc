#include "transport/tcp/incoming.h"

#include <cstddef>

#include "core/error.h"

namespace lockstep {

bool Incoming::read() {
  using Result = Session::Result;
  std::size_t moved = 0;
  Channels::PostedLock lock;
  const Result result = session->read(frames.room(lock), moved);
  if (lock.owns_lock()) lock.unlock();
  if (result == Result::kWantsRead || result == Result::kWantsWrite) return false;
  if (result != Result::kDone) throw Error(session->problem());
  frames.take(moved);
  return true;
}

}  // namespace lockstep
