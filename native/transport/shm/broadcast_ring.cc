#include "transport/shm/broadcast_ring.h"

#include <cstring>

namespace lockstep {

std::size_t BroadcastRing::footprint(int processes, std::size_t capacity) {
  return (1 + static_cast<std::size_t>(processes)) * sizeof(Counter) +
         kDepth * (kHeader + capacity);
}

BroadcastRing::BroadcastRing(std::byte* memory, int processes, std::size_t capacity, int writer,
                             int self)
    : written_(reinterpret_cast<Counter*>(memory)),
      read_(written_ + 1),
      slots_(memory + (1 + static_cast<std::size_t>(processes)) * sizeof(Counter)),
      capacity_(capacity),
      processes_(processes),
      writer_(writer),
      self_(self) {}

Counter* BroadcastRing::blocked_by() { return behind(free_target()); }

Counter* BroadcastRing::unread_by() { return behind(read_target()); }

Counter* BroadcastRing::behind(std::uint32_t target) {
  for (int process = 0; process < processes_; ++process)
    if (process != writer_ && !read_[process].reached(target)) return &read_[process];
  return nullptr;
}

void BroadcastRing::publish(const Signature& signature) {
  std::memcpy(slot(next_), &signature, sizeof(signature));
  written_->advance();
  ++next_;
}

void BroadcastRing::release() {
  ++next_;
  read_[self_].advance();
}

}  // namespace lockstep
