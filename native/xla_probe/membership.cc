#include "xla_probe/membership.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "core/job.h"
#include "xla_probe/stack.h"
#include "xla_probe/vtables.h"

namespace lockstep {
namespace {

constexpr std::size_t kLargestClique = 1 << 16;
// XLA's frames between the list and us are under a hundred words deep; a wide margin.
constexpr std::size_t kDeepest = 1 << 14;

constexpr std::size_t kKeyWords = 4;  // table, and a vector

// std::vector as both common standard libraries lay it out: begin, end, end of storage.
template <typename Id>
DeviceList read_list(const std::uintptr_t* vector) {
  const std::uintptr_t begin = vector[0], end = vector[1], storage = vector[2];
  const std::size_t count = (end - begin) / sizeof(Id);
  if (begin % sizeof(Id) != 0 || end <= begin || storage < end || count > kLargestClique) return {};
  std::vector<Id> ids(count);
  if (!read_memory(begin, ids.data(), count * sizeof(Id))) return {};
  for (const Id id : ids)
    if (id < 0 || id > INT32_MAX) return {};
  return {ids.begin(), ids.end()};
}

// What any list must satisfy to be the clique asked for.
bool plausible(const Job& job, const DeviceList& devices, int color, int key) {
  if (key < 0 || static_cast<std::size_t>(key) >= devices.size() || devices[0] != color)
    return false;
  if (job.process_of(devices[static_cast<std::size_t>(key)]) != job.process()) return false;
  const std::unordered_set<int> distinct(devices.begin(), devices.end());
  return distinct.size() == devices.size() &&
         std::ranges::all_of(devices, [&](int id) { return job.process_of(id) >= 0; });
}

std::string text_of(const std::vector<FoundKey>& keys) {
  std::string text;
  for (const auto& [list, places] : keys) {
    text += text.empty() ? "{" : ", {";
    for (std::size_t i = 0; i < list.size(); ++i) text += (i ? "," : "") + std::to_string(list[i]);
    text += "}";
  }
  return text;
}

// The keys that are found, each list once.
class Keys {
 public:
  Keys(const Job& job, int color, int key, int id_bytes)
      : world_(job), color_(color), key_(key), id_bytes_(id_bytes) {}

  // Whether it is a key, if perhaps not of the clique that is asked for. `frame` is its address if
  // it lies in a frame, else 0.
  bool take(const std::uintptr_t (&object)[kKeyWords], std::uintptr_t frame) {
    if (!is_key(object)) return false;
    const DeviceList list =
        id_bytes_ == 4 ? read_list<std::int32_t>(object + 1) : read_list<std::int64_t>(object + 1);
    if (!plausible(world_, list, color_, key_)) return true;
    auto same = std::ranges::find(found, list, &FoundKey::devices);
    if (same == found.end()) same = found.insert(same, {list, {}});
    if (frame != 0) same->places.push_back(place_of(frame));
    return true;
  }
  std::vector<FoundKey> found;

 private:
  bool is_key(const std::uintptr_t (&object)[kKeyWords]) const {
    if (table_ != 0) return object[0] == table_;
    // The cheap look at the list's shape goes first; reading a type takes three system calls.
    return object[0] >= 4096 && object[1] >= 4096 && object[2] > object[1] &&
           object[3] >= object[2] && is_table_of(object[0], kCliqueKeyType);
  }

  const Job& world_;
  const int color_, key_, id_bytes_;
  const std::uintptr_t table_ = virtual_tables().clique_key;
};

}  // namespace

#if defined(__GNUC__)
__attribute__((no_sanitize("address")))
#endif
std::vector<FoundKey> keys_on_stack(const Job& job, int color, int key, int id_bytes) {
  Keys keys(job, color, key, id_bytes);
  if (id_bytes == 0) return {};
  const auto* const words = static_cast<const std::uintptr_t*>(__builtin_frame_address(0));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(words), end = end_of_stack();
  const std::size_t count = std::min(kDeepest, end > begin ? (end - begin) / sizeof(*words) : 0);
  bool any = false;
  for (std::size_t i = 0; i + kKeyWords <= count; ++i)
    any = keys.take({words[i], words[i + 1], words[i + 2], words[i + 3]},
                    begin + i * sizeof(*words)) ||
          any;
  // The key is in no frame, so perhaps on the heap, and a frame points to it. What is pointed to
  // need not be memory, so the kernel copies it. A key in a frame is nearer than any that is
  // pointed to.
  if (any || virtual_tables().clique_key == 0) return std::move(keys.found);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uintptr_t to = words[i];
    std::uintptr_t object[kKeyWords];
    const bool outside = to >= 4096 && to % sizeof(to) == 0 && (to < begin || to >= end);
    if (outside && read_memory(to, object, sizeof(object))) keys.take(object, 0);
  }
  return std::move(keys.found);
}

DeviceList KeyChooser::choose(std::vector<FoundKey> candidates,
                              const std::function<bool(const DeviceList&)>& taken, int color,
                              int key, const std::string& advice) {
  std::erase_if(candidates, [&](const FoundKey& each) { return taken(each.devices); });
  const std::lock_guard lock(mutex_);
  if (candidates.size() > 1) {
    const auto is_live = [&](const FoundKey& each) {
      return std::ranges::any_of(each.places, [&](const Place& at) { return known_.contains(at); });
    };
    if (std::ranges::count_if(candidates, is_live) == 1)
      std::erase_if(candidates, std::not_fn(is_live));
  } else if (candidates.size() == 1 && candidates[0].places.size() == 1) {
    if (const Place place = candidates[0].places[0]; place.call != 0) known_.insert(place);
  }
  if (candidates.size() == 1) return candidates[0].devices;
  throw Error("lockstep: cannot tell which devices form the group that starts with device " +
              std::to_string(color) + " and has this process at position " + std::to_string(key) +
              (candidates.empty() ? std::string() : "; it could be " + text_of(candidates)) +
              ". Lockstep does not guess. " + advice);
}

}  // namespace lockstep
