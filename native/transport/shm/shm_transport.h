// The transport between processes of one host: both ends of a ring are the same memory.
#pragma once

#include <string>
#include <vector>

#include "transport/shm/cross_memory_read.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace lockstep {

class ShmTransport : public Transport {
 public:
  // `labels` name the processes in errors and must outlive this. `single_copy`: whether memory of
  // other processes is read, and that of this one may be. `reports_ends`: whether `has_left` does;
  // in a job of one host the watchdog detects ends, and can say more.
  ShmTransport(Arena& arena, int process, const std::vector<std::string>& labels, bool single_copy,
               bool reports_ends)
      : arena_(arena), memory_(arena, process, labels, single_copy), reports_ends_(reports_ends) {}

  std::byte* allocate_copy(std::size_t) override { return nullptr; }
  std::unique_ptr<SendChannel> open(const ChannelId& id, const SendRing& ring) override;
  std::unique_ptr<ReceiveChannel> open(const ChannelId& id, const ReceiveRing& ring) override;
  bool can_read(int process) const override { return memory_.readable(process); }
  void read(int process, std::span<const MemoryPiece> pieces) const override {
    memory_.read(process, pieces);
  }
  const std::atomic<std::uint32_t>* has_left(int process) const override;

 private:
  Arena& arena_;
  const CrossMemoryReader memory_;
  const bool reports_ends_;
};

}  // namespace lockstep
