#include "fabric/lane.h"

#include <cstring>

namespace lockstep {

std::size_t Lane::footprint(int processes, std::size_t capacity) {
  return (1 + static_cast<std::size_t>(processes)) * sizeof(Counter) +
         kDepth * (kHeader + capacity);
}

Lane::Lane(std::byte* memory, int processes, std::size_t capacity, int writer, int self)
    : written_(reinterpret_cast<Counter*>(memory)),
      read_(written_ + 1),
      slots_(memory + (1 + static_cast<std::size_t>(processes)) * sizeof(Counter)),
      capacity_(capacity),
      processes_(processes),
      writer_(writer),
      self_(self) {}

Counter* Lane::blocked_by() { return behind(free_target()); }

Counter* Lane::unread_by() { return behind(read_target()); }

Counter* Lane::behind(std::uint32_t target) {
  for (int process = 0; process < processes_; ++process)
    if (process != writer_ && !read_[process].reached(target)) return &read_[process];
  return nullptr;
}

void Lane::publish(const Signature& signature) {
  std::memcpy(slot(next_), &signature, sizeof(signature));
  ++next_;
  written_->advance();
}

void Lane::release() {
  ++next_;
  read_[self_].advance();
}

}  // namespace lockstep
