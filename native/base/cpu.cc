#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {
namespace {

#if defined(__x86_64__)
// The registers that the operating system saves when it switches threads (XCR0).
unsigned saved_registers() {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Simd detect() {
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // XCR0: SSE and AVX; and the three of AVX-512
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512VL;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return Simd::kBaseline;
  const unsigned saved = saved_registers();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (saved & kYmm) != kYmm || (b & bit_AVX2) == 0)
    return Simd::kBaseline;
  return (saved & kZmm) == kZmm && (b & kAvx512) == kAvx512 ? Simd::kAvx512 : Simd::kAvx2;
}
#else
Simd detect() { return Simd::kBaseline; }
#endif

}  // namespace

Simd simd() {
  static const Simd found = detect();
  return found;
}

}  // namespace lockstep
