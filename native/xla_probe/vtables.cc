#include "xla_probe/vtables.h"

#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/descriptor.h"

namespace lockstep {
namespace {

std::atomic<std::uintptr_t> clique_key_table{0}, executor_table{0};

struct Segment {
  std::uintptr_t address;
  std::size_t bytes;  // in memory
  std::size_t file_at, file_bytes;
  std::uint32_t flags;

  bool holds(std::uintptr_t at) const { return at >= address && at < address + bytes; }
};

struct Library {
  std::string path;
  std::vector<Segment> segments;
};

std::vector<Library> libraries(const std::string& part_of_path) {
  struct Search {
    const std::string& part;
    std::vector<Library> found;
  } search{part_of_path, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        Library library{*info->dlpi_name == '\0' ? "/proc/self/exe" : info->dlpi_name, {}};
        if (library.path.find(search.part) == std::string::npos) return 0;
        for (const auto& header : std::span(info->dlpi_phdr, info->dlpi_phnum))
          if (header.p_type == PT_LOAD)
            library.segments.push_back({info->dlpi_addr + header.p_vaddr, header.p_memsz,
                                        header.p_offset, header.p_filesz, header.p_flags});
        search.found.push_back(std::move(library));
        return 0;
      },
      &search);
  return std::move(search.found);
}

using Places = std::array<std::vector<std::uintptr_t>, 2>;

constexpr std::string_view kNames[] = {kCliqueKeyType, kExecutorType};
constexpr std::string_view kPrefix = "N3xla3cpu";  // of both
constexpr std::size_t kMaxLength = 64;
static_assert(kNames[0].size() < kMaxLength && kNames[1].size() < kMaxLength);

// Notes which of the names the text is, if it is one; `place` is where it is in memory.
void note_name(const char* text, std::uintptr_t place, Places& found) {
  for (std::size_t i = 0; i < found.size(); ++i)
    if (std::memcmp(text, kNames[i].data(), kNames[i].size() + 1) == 0) found[i].push_back(place);
}

// Finds the places of the names in a segment, in memory. The file is read, and not the mapping: all
// its pages would count as memory of this process from then on.
void find_names(int file, const Segment& segment, Places& found) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  // A zero before it, or it is the end of a longer name; and zeros behind the last one.
  std::vector<char> part(1 + kPart + kMaxLength);
  for (std::size_t at = 0; at < segment.file_bytes; at += kPart) {
    const std::size_t before = at == 0 ? 0 : 1;
    std::ranges::fill(part, '\0');
    const std::size_t wanted =
        std::min(before + kPart + kMaxLength, before + segment.file_bytes - at);
    const auto offset = static_cast<off_t>(segment.file_at + at - before);
    if (pread(file, part.data() + 1 - before, wanted, offset) != static_cast<ssize_t>(wanted))
      return;
    const char *from = part.data() + 1, *const end = from + kPart;
    while (const void* hit = memmem(from, static_cast<std::size_t>(end + kPrefix.size() - 1 - from),
                                    kPrefix.data(), kPrefix.size())) {
      const auto* text = static_cast<const char*>(hit);
      from = text + 1;
      const auto place = static_cast<std::size_t>(text - part.data() - 1);
      if (text[-1] == '\0') note_name(text, segment.address + at + place, found);
    }
  }
}

// The names are among the constants, which most linkers keep apart from the code.
Places find_names(const Library& library) {
  Places found;
  const Descriptor file(open(library.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return found;
  for (const bool constants : {true, false})
    for (const Segment& segment : library.segments)
      if ((segment.flags == PF_R) == constants && (found[0].empty() || found[1].empty()))
        find_names(file.get(), segment, found);
  return found;
}

// Data that the loader has written addresses into, and may have protected since.
bool holds_tables(const Segment& segment) {
  return (segment.flags & PF_W) != 0 && (segment.flags & PF_X) == 0 && segment.bytes != 0;
}

// Words between variables belong to no object, which AddressSanitizer reports.
__attribute__((no_sanitize("address", "thread"))) std::uintptr_t load(const std::uintptr_t* word) {
  return *word;
}

template <typename Take>
void for_each_word(const Library& library, Take take) {
  for (const Segment& segment : library.segments) {
    if (!holds_tables(segment)) continue;
    const std::uintptr_t begin = (segment.address + 7) / 8 * 8;
    const auto* words = reinterpret_cast<const std::uintptr_t*>(begin);
    // What is not in the file is zero at first: no tables.
    const std::size_t count = (segment.address + segment.file_bytes - begin) / 8;
    for (std::size_t i = 0; i < count; ++i) take(words + i, i + 1 < count);
  }
}

bool is_code(const Library& library, std::uintptr_t address) {
  return std::ranges::any_of(library.segments, [&](const Segment& segment) {
    return (segment.flags & PF_X) != 0 && segment.holds(address);
  });
}

// The table of the type that has one of these names: 0 unless there is just one.
std::uintptr_t table_of(const Library& library, const std::vector<std::uintptr_t>& names) {
  std::vector<std::uintptr_t> types, tables;
  for_each_word(library, [&](const std::uintptr_t* word, bool) {
    // The word before it is the table of the description's own class.
    if (std::ranges::find(names, load(word)) != names.end())
      types.push_back(reinterpret_cast<std::uintptr_t>(word - 1));
  });
  if (types.empty()) return 0;
  for_each_word(library, [&](const std::uintptr_t* word, bool has_next) {
    // The word follows the offset to the top of the object, which is 0, and precedes the functions.
    if (std::ranges::find(types, load(word)) != types.end() && load(word - 1) == 0 && has_next &&
        is_code(library, load(word + 1)))
      tables.push_back(reinterpret_cast<std::uintptr_t>(word + 1));
  });
  return tables.size() == 1 ? tables[0] : 0;
}

}  // namespace

void find_virtual_tables(const std::string& part_of_path) {
  for (const Library& library : libraries(part_of_path)) {
    const Places names = find_names(library);
    if (const std::uintptr_t found = table_of(library, names[0])) clique_key_table.store(found);
    if (const std::uintptr_t found = table_of(library, names[1])) executor_table.store(found);
  }
}

void set_virtual_tables(const VirtualTables& tables) {
  clique_key_table.store(tables.clique_key);
  executor_table.store(tables.executor);
}

VirtualTables virtual_tables() {
  return {clique_key_table.load(std::memory_order_relaxed),
          executor_table.load(std::memory_order_relaxed)};
}

}  // namespace lockstep
