// How the members of a reduction share a vector: each owns a slice, a whole number of cache lines.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

// Elements [first, first + count).
struct Slice {
  std::size_t first, count;
};

inline constexpr std::size_t kCacheLine = 64;

// Rounds up to the elements of whole cache lines.
inline std::size_t whole_lines(std::size_t elements, std::size_t width) {
  const std::size_t line = std::max<std::size_t>(1, kCacheLine / width);
  return (elements + line - 1) / line * line;
}

// The slice of one member, of `count` elements of `width` bytes. The last slices may be shorter
// than the others, or empty.
inline Slice slice_of(int member, int members, std::size_t count, std::size_t width) {
  const auto parts = static_cast<std::size_t>(members);
  const std::size_t each = whole_lines((count + parts - 1) / parts, width);
  const std::size_t first = std::min(count, static_cast<std::size_t>(member) * each);
  return {first, std::min(each, count - first)};
}

}  // namespace lockstep
