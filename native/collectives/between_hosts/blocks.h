// The blocks of a process in the collectives that move data: a list of equal parts, one for each of
// its ranks (or pairs of ranks), which travel in messages between processes. Small parts share a
// message; large ones go in pieces, straight from where they are.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "collectives/between_hosts/exchange.h"

namespace lockstep {

class Blocks {
 public:
  // `parts` parts of `bytes` bytes each.
  Blocks(const Clique& clique, std::size_t parts, std::size_t bytes)
      : parts_(parts),
        bytes_(bytes),
        pieces_(clique, bytes),
        together_(parts * bytes <= kTogether) {}

  std::size_t messages() const { return together_ ? 1 : parts_ * pieces_.count(); }
  // The bytes of a message.
  std::size_t size(std::size_t message) const {
    return together_ ? parts_ * bytes_ : pieces_.size(message % pieces_.count());
  }

  // Calls take(part, at, bytes, offset) for what a message holds: bytes [at, at + bytes) of a part,
  // which begin at `offset` in the message.
  template <typename Take>
  void for_each(std::size_t message, Take take) const {
    if (!together_) {
      const std::size_t piece = message % pieces_.count();
      return take(message / pieces_.count(), pieces_.at(piece), pieces_.size(piece), 0);
    }
    for (std::size_t part = 0; part < parts_; ++part) take(part, 0, bytes_, part * bytes_);
  }

  // The place where a message that holds one part, or a piece of it, is needed; empty if it holds
  // several. to(part) is where a part goes.
  template <typename To>
  std::span<std::byte> place(std::size_t message, To to) const {
    std::span<std::byte> place;
    if (together_ && parts_ != 1) return place;
    for_each(message, [&](std::size_t part, std::size_t at, std::size_t bytes, std::size_t) {
      place = {to(part) + at, bytes};
    });
    return place;
  }

  // A message to send: where it is, or put together in `scratch`. from(part) is where a part is.
  template <typename From>
  std::span<const std::byte> gather(std::size_t message, std::byte* scratch, From from) const {
    if (!together_ || parts_ == 1) {
      std::span<const std::byte> found;
      for_each(message, [&](std::size_t part, std::size_t at, std::size_t bytes, std::size_t) {
        found = {from(part) + at, bytes};
      });
      return found;
    }
    for_each(message, [&](std::size_t part, std::size_t at, std::size_t bytes, std::size_t offset) {
      if (bytes != 0) std::memcpy(scratch + offset, from(part) + at, bytes);
    });
    return {scratch, size(message)};
  }

  // The most bytes that share a message.
  static constexpr std::size_t kTogether = 64 << 10;

 private:
  std::size_t parts_;
  std::size_t bytes_;
  Pieces pieces_;
  bool together_;
};

}  // namespace lockstep
