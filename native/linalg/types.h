// A kernel for each type of number, in the variants of the processor.
#pragma once

#include <complex>

#include "base/cpu.h"
#include "linalg/ffi.h"

#define LOCKSTEP_TYPE(NAME, PLACE, CALL, T)                                        \
  LOCKSTEP_VARIANTS(NAME, (const ffi::Frame& frame, const PLACE& at), (frame, at), \
                    (CALL<T>(frame, at)))

// Defines `NAME_of_type`, which calls the template NAME for the numbers of `type`: `is_number` has
// told that they are some.
#define LOCKSTEP_TYPES(NAME, PLACE)                                               \
  LOCKSTEP_TYPE(NAME##_f32, PLACE, NAME, float)                                   \
  LOCKSTEP_TYPE(NAME##_f64, PLACE, NAME, double)                                  \
  LOCKSTEP_TYPE(NAME##_c64, PLACE, NAME, std::complex<float>)                     \
  LOCKSTEP_TYPE(NAME##_c128, PLACE, NAME, std::complex<double>)                   \
  void NAME##_of_type(ffi::Type type, const ffi::Frame& frame, const PLACE& at) { \
    switch (type) {                                                               \
      case ffi::Type::kF32:                                                       \
        return NAME##_f32(frame, at);                                             \
      case ffi::Type::kF64:                                                       \
        return NAME##_f64(frame, at);                                             \
      case ffi::Type::kC64:                                                       \
        return NAME##_c64(frame, at);                                             \
      default:                                                                    \
        return NAME##_c128(frame, at);                                            \
    }                                                                             \
  }
