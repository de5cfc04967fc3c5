// Arithmetic and copies of a leader, in parts that the waiting ranks of its process take too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/reduce.h"
#include "core/collective_context.h"

namespace lockstep {

// What a part reads and writes at least. It takes a core 3 to 25 us, and to hand a part over about
// one; a message of 256 KiB to which two ranks add has three.
inline constexpr std::size_t kPartBytes = 256 << 10;

// Calls work(first, n) for ranges that together are [0, count), each once; where the work is long,
// other ranks do some of them. `bytes`: that one item reads and writes. All ranges but the last are
// multiples of `step`.
template <typename Work>
void share(CollectiveContext& context, std::size_t count, std::size_t bytes, std::size_t step,
           const Work& work) {
  Crew& crew = context.clique().local_group().crew();
  const std::size_t parts = std::min<std::size_t>(count * bytes / kPartBytes, Crew::kMaxParts);
  if (parts < 2 || !crew.helps()) return work(std::size_t{0}, count);
  const std::size_t each = ((count + parts - 1) / parts + step - 1) / step * step;
  const auto range = [&](std::uint32_t part) noexcept {
    const std::size_t first = part * each;
    work(first, std::min(each, count - first));
  };
  crew.run(static_cast<std::uint32_t>((count + each - 1) / each), range);
}

// Calls work(i) for each i below `count`, shared; each reads and writes so many bytes.
template <typename Work>
void share_each(CollectiveContext& context, std::size_t count, std::size_t bytes,
                const Work& work) {
  share(context, count, bytes, 1, [&](std::size_t first, std::size_t n) {
    for (std::size_t i = first; i < first + n; ++i) work(i);
  });
}

// Elements, of which so many fill at least a cache line.
inline constexpr std::size_t kShareStep = 64;

// `reduce`, shared.
inline void share_reduce(CollectiveContext& context, std::byte* out,
                         std::span<const std::byte* const> in, std::size_t count, DType dtype,
                         Reduction reduction) {
  if (in.size() > 1) check_reduction(dtype, reduction);  // a part must not throw
  const std::size_t width = size_of(dtype);
  share(context, count, width * (in.size() + 1), kShareStep, [&](std::size_t first, std::size_t n) {
    reduce(out + first * width, in, n, dtype, reduction, first);
  });
}

// `memcpy`, shared.
inline void share_copy(CollectiveContext& context, std::byte* to, const std::byte* from,
                       std::size_t bytes) {
  share(context, bytes, 2, 4096,
        [&](std::size_t first, std::size_t n) { std::memcpy(to + first, from + first, n); });
}

}  // namespace lockstep
