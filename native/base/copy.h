// Copies into a rank's output.
#pragma once

#include <cstddef>
#include <cstring>

namespace lockstep {

// Above this many bytes of output a collective's result does not survive in the caches anyway, and
// ordinary stores would first read every line that they are about to overwrite.
inline constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

// Asks for huge pages for a result of some MiB: the first touch of fresh memory is then one fault
// in place of 512, which otherwise take longer than the collective. Memory in use stays as it is.
void ask_for_huge_pages(std::byte* to, std::size_t bytes);

// memcpy whose stores bypass the caches. A thread that synchronises with this one after
// the call sees the data, as with memcpy.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

// Copies into the outputs of one collective, which of all ranks of this process have `total` bytes.
class OutputCopy {
 public:
  explicit OutputCopy(std::size_t total) : stream_(total >= kStreamBytes) {}
  void operator()(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (stream_)
      stream_copy(to, from, bytes);
    else if (bytes != 0)  // of nothing there may be no address
      std::memcpy(to, from, bytes);
  }

 private:
  bool stream_;
};

}  // namespace lockstep
