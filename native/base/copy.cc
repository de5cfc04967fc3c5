#include "base/copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep {

void ask_for_huge_pages(std::byte* to, std::size_t bytes) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  if (bytes < 2 * kHuge) return;
  const auto start = reinterpret_cast<std::uintptr_t>(to);
  const std::uintptr_t first = (start + kHuge - 1) / kHuge * kHuge;
  const std::uintptr_t end = (start + bytes) / kHuge * kHuge;
  // A system without huge pages refuses, and nothing is lost.
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

#if defined(__SSE2__)
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to, from, bytes);
  _mm_sfence();  // streamed stores are not ordered by the release that follows
}
#else
// aarch64's memcpy decides by itself; there is no portable way to ask for streaming.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace lockstep
