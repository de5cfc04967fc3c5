#include "transport/shm/broadcast_ring.h"

#include <cstring>

namespace lockstep {

std::size_t Lane::footprint(int processes, std::size_t capacity) {
  return (1 + static_cast<std::size_t>(processes)) * sizeof(Counter) +
         kDepth * (kHeader + capacity);
}

void Lane::clear(std::byte* memory, int processes, std::size_t capacity) {
  const std::size_t counters = (1 + static_cast<std::size_t>(processes)) * sizeof(Counter);
  std::memset(memory, 0, counters);
  for (std::uint32_t i = 0; i < kDepth; ++i)
    std::memset(memory + counters + i * (kHeader + capacity), 0, kHeader);
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

void Lane::connect(Network& network, std::uint64_t clique, std::uint32_t place,
                   const std::vector<int>& process_of) {
  network_ = &network;
  for (int index = 0; index < processes_; ++index) {
    const Stream stream{clique, place, process_of[static_cast<std::size_t>(index)]};
    if (index == self_ || (self_ != writer_ && index != writer_) ||
        !network.is_elsewhere(stream.process))
      continue;
    if (self_ == writer_)
      network.streams().open(stream, Outlet{&read_[index]});
    else
      network.streams().open(stream,
                             Inlet{slots_, kDepth, kHeader + capacity_, written_, &read_[self_]});
    elsewhere_.push_back({index, stream});
  }
}

std::uint32_t Lane::publish_here(const Signature& signature) {
  std::memcpy(slot(next_), &signature, sizeof(signature));
  written_->advance();
  return next_++;
}

void Lane::send(std::uint32_t number, const Stream& stream, const Part& part, const Watch& watch) {
  const std::byte* header = slot(number);
  network_->send(stream, number,
                 {std::span<const std::byte, kSlotHeader>(header, kSlotHeader),
                  part.at,
                  {header + kHeader + part.at, part.bytes}},
                 watch);
}

void Lane::release(const Watch& watch) {
  const std::uint32_t number = next_++;
  read_[self_].advance();
  for (const Elsewhere& writer : elsewhere_) network_->release(writer.stream, number, watch);
}

}  // namespace lockstep
