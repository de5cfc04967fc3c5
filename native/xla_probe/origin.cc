#include "xla_probe/origin.h"

#include <atomic>
#include <cstddef>
#include <cstring>

#include "xla_probe/stack.h"
#include "xla_probe/vtables.h"

// Words of the stack between variables belong to no object, which AddressSanitizer reports.
#define NOT_SANITIZED __attribute__((no_sanitize("address")))

namespace lockstep {
namespace {

// How many words are looked at together.
constexpr std::size_t kBlock = 16;
// In all known jaxlibs the object lies 44 to 46 words above the functions of the MPI interface.
constexpr std::size_t kWindow = 10 * kBlock;

// A table that was not found in jaxlib is searched for in the frames of so many calls: not each
// kind of call need show the object.
constexpr int kTries = 100;
std::atomic<int> tries{0};

// The object's words: table, execution, begin / end / capacity of the list of devices, two 32-bit
// numbers (participants, kind of operation), channel.
constexpr std::size_t kWords = 7;

bool plausible(const std::uintptr_t* object) {
  const auto kind = object[5] >> 32;
  return object[2] != 0 && object[3] > object[2] && object[4] >= object[3] && kind <= 1;
}

// Finds the table by the name of its type, in frames: 0 when it is not there.
std::uintptr_t find_table(const std::uintptr_t* word) {
  // A thread's stack ends far above its innermost functions wherever the object exists.
  const std::uintptr_t end = end_of_stack();
  const auto left = (end - reinterpret_cast<std::uintptr_t>(word)) / sizeof(*word);
  const std::size_t words = left < kWindow ? left : kWindow;
  for (std::size_t i = 0; i + kWords <= words; ++i)
    if (word[i] > 4096 && plausible(word + i) && is_table_of(word[i], kExecutorType))
      return word[i];
  return 0;
}

std::uintptr_t search_table(const std::uintptr_t* word) {
  if (tries.load(std::memory_order_relaxed) >= kTries) return 0;
  tries.fetch_add(1, std::memory_order_relaxed);
  const std::uintptr_t found = find_table(word);
  if (found != 0) set_virtual_tables({virtual_tables().clique_key, found});
  return found;
}

// Two words as four halves: processors without AVX compare halves, and not words, at once.
using Halves = std::uint32_t __attribute__((vector_size(16)));

// Whether one of kBlock words may be the table's address: says yes for some that only share a half.
NOT_SANITIZED bool may_hold(const std::uintptr_t* word, std::uintptr_t table) {
  const auto low = static_cast<std::uint32_t>(table);
  const Halves wanted{low, low, low, low};
  Halves found{};
  for (std::size_t i = 0; i < kBlock; i += 2) {
    Halves two;
    std::memcpy(&two, word + i, sizeof(two));
    found |= static_cast<Halves>(two == wanted);
  }
  std::uint64_t both[2];
  std::memcpy(both, &found, sizeof(both));
  return (both[0] | both[1]) != 0;
}

// What an object says whose table is at this word.
NOT_SANITIZED Origin read_origin(const std::uintptr_t* word) {
  if (!plausible(word)) return {};
  return {static_cast<std::int64_t>(word[1]), static_cast<std::int64_t>(word[6]), 0};
}

}  // namespace

NOT_SANITIZED Origin origin_of_call(const void* frame) {
  const auto* word = static_cast<const std::uintptr_t*>(frame);
  std::uintptr_t table = virtual_tables().executor;
  if (table == 0 && (table = search_table(word)) == 0) return {};
  Origin found;
  for (std::size_t block = 0; block < kWindow; block += kBlock) {
    if (!may_hold(word + block, table)) continue;
    for (std::size_t i = block; i < block + kBlock && i + kWords <= kWindow; ++i) {
      const Origin one = word[i] == table ? read_origin(word + i) : Origin{};
      // What an earlier call left behind may look like a live object.
      if (!one.agrees(found)) return {};
      if (one.known()) found = one;
    }
  }
  return found;
}

void restart_search_for_origins() { tries.store(0); }

}  // namespace lockstep
