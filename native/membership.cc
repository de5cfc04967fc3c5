#include "membership.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>

#include "error.h"
#include "world.h"

namespace lockstep {
namespace {

constexpr std::size_t kLargestClique = 1 << 16;
// XLA's frames between the list and us are under a hundred words deep; a wide margin.
constexpr std::size_t kDeepest = 1 << 14;

// A word of the stack may look like a pointer and not be one: the kernel copies, and says no.
bool read_memory(std::uintptr_t address, void* to, std::size_t bytes) {
  const iovec local{to, bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

std::uintptr_t end_of_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* base = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &base, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<std::uintptr_t>(base) + size;
}

// std::vector as both common standard libraries lay it out: begin, end, end of storage. The id has
// been 4 and 8 bytes wide in different releases.
template <typename Id>
DeviceList read_list(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t storage,
                     std::size_t at_least) {
  if (begin < 4096 || begin % sizeof(Id) != 0 || end <= begin || storage < end) return {};
  const std::size_t count = (end - begin) / sizeof(Id);
  if ((end - begin) % sizeof(Id) != 0 || (storage - begin) % sizeof(Id) != 0) return {};
  if (count <= at_least || count > kLargestClique || storage - begin > 4 * kLargestClique * 8)
    return {};
  std::vector<Id> ids(count);
  if (!read_memory(begin, ids.data(), count * sizeof(Id))) return {};
  for (const Id id : ids)
    if (id < 0 || id > INT32_MAX) return {};
  return {ids.begin(), ids.end()};
}

// What any list must satisfy to be the clique asked for.
bool plausible(const World& world, const DeviceList& devices, int color, int key) {
  if (key < 0 || static_cast<std::size_t>(key) >= devices.size() || devices[0] != color)
    return false;
  if (world.process_of(devices[static_cast<std::size_t>(key)]) != world.process()) return false;
  const std::unordered_set<int> distinct(devices.begin(), devices.end());
  return distinct.size() == devices.size() &&
         std::ranges::all_of(devices, [&](int id) { return world.process_of(id) >= 0; });
}

bool in_a_library(std::uintptr_t address) {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(address), &info) != 0;
}

void add(std::vector<DeviceList>& lists, const DeviceList& list) {
  if (std::ranges::find(lists, list) == lists.end()) lists.push_back(list);
}

std::string text_of(const std::vector<DeviceList>& lists) {
  std::string text;
  for (const auto& list : lists) {
    text += text.empty() ? "{" : ", {";
    for (std::size_t i = 0; i < list.size(); ++i) text += (i ? "," : "") + std::to_string(list[i]);
    text += "}";
  }
  return text;
}

}  // namespace

#if defined(__GNUC__)
__attribute__((no_sanitize("address")))
#endif
Sightings scan_stack(const World& world, int color, int key) {
  Sightings seen;
  const auto* word = static_cast<const std::uintptr_t*>(__builtin_frame_address(0));
  const std::uintptr_t end = end_of_stack();
  for (std::size_t i = 0; i < kDeepest; ++i, ++word) {
    if (reinterpret_cast<std::uintptr_t>(word + 3) > end) break;
    const std::uintptr_t begin = word[0], last = word[1], storage = word[2];
    const auto at_least = static_cast<std::size_t>(key);
    for (const auto& list : {read_list<std::int32_t>(begin, last, storage, at_least),
                             read_list<std::int64_t>(begin, last, storage, at_least)}) {
      if (list.empty() || !plausible(world, list, color, key)) continue;
      add(seen.lists, list);
      if (in_a_library(word[-1])) add(seen.keys, list);
    }
  }
  return seen;
}

DeviceList decide_members(const Sightings& seen,
                          const std::function<bool(const DeviceList&)>& taken, int color, int key) {
  std::vector<DeviceList> candidates = seen.keys.empty() ? seen.lists : seen.keys;
  std::erase_if(candidates, taken);
  if (candidates.size() == 1) return candidates[0];
  throw Error("lockstep: cannot tell which devices form the group that starts with device " +
              std::to_string(color) + " and has this process at position " + std::to_string(key) +
              (candidates.empty() ? std::string() : "; it could be " + text_of(candidates)) +
              ". Lockstep does not guess. This jaxlib may be newer than this version of Lockstep "
              "knows: see `lockstep doctor`. --collectives gloo works without the engine.");
}

}  // namespace lockstep
