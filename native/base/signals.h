#pragma once

#include <signal.h>

namespace lockstep {

// Called by a thread of the engine's own: signals are for threads that know what to do with them.
inline void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace lockstep
