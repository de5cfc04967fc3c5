// Kernels compiled for several instruction sets, of which the processor at hand takes the widest.
//
// The choice is made by our own reading of cpuid, not by `target_clones` or
// `__builtin_cpu_supports`: clang needs a run-time library for both, which the compiler of the
// wheels does not have, and a sanitizer cannot run resolvers that the loader calls before its
// run-time is up.
#pragma once

// Into the variants, whose instructions the callees are to be compiled with.
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep {

enum class Simd { kBaseline, kAvx2, kAvx512 };

// The widest set that this processor and its operating system support.
Simd simd();

}  // namespace lockstep

// Both define the function NAME, which runs BODY (in parentheses) in the variant for this
// processor: AVX2 or the baseline, or of three with AVX-512. The arithmetic is the same in all of
// them: -ffp-contract=off keeps multiplications and additions apart.
#if defined(__x86_64__)
#define LOCKSTEP_VARIANTS(NAME, PARAMETERS, ARGUMENTS, BODY)            \
  __attribute__((target("avx2"))) void NAME##_avx2 PARAMETERS { BODY; } \
  void NAME##_baseline PARAMETERS { BODY; }                             \
  void NAME PARAMETERS {                                                \
    if (::lockstep::simd() >= ::lockstep::Simd::kAvx2)                  \
      NAME##_avx2 ARGUMENTS;                                            \
    else                                                                \
      NAME##_baseline ARGUMENTS;                                        \
  }
#define LOCKSTEP_THREE_VARIANTS(NAME, PARAMETERS, ARGUMENTS, BODY)                    \
  LOCKSTEP_VARIANTS(NAME##_narrow, PARAMETERS, ARGUMENTS, BODY)                       \
  __attribute__((target("avx512f,avx512vl"))) void NAME##_avx512 PARAMETERS { BODY; } \
  void NAME PARAMETERS {                                                              \
    if (::lockstep::simd() == ::lockstep::Simd::kAvx512)                              \
      NAME##_avx512 ARGUMENTS;                                                        \
    else                                                                              \
      NAME##_narrow ARGUMENTS;                                                        \
  }
#else
#define LOCKSTEP_VARIANTS(NAME, PARAMETERS, ARGUMENTS, BODY) \
  void NAME PARAMETERS { BODY; }
#define LOCKSTEP_THREE_VARIANTS LOCKSTEP_VARIANTS
#endif
