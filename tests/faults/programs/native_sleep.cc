// Native calls that sleep, for at_barriers.py.

#include <unistd.h>

#include "xla/ffi/api/ffi.h"

extern "C" {
unsigned seconds = 0;  // how long each call sleeps

// A call of a function in Python: the result is `answer`.
void* read_slowly(void* answer, void*) {
  sleep(seconds);
  return answer;
}
}

static xla::ffi::Error sleep_long() {
  sleep(seconds);
  return xla::ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(compute_slowly, sleep_long, xla::ffi::Ffi::Bind());
