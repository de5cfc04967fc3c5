// Bytes that are wiped from memory when they are not needed any more, copies included.
#pragma once

#include <string.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace lockstep {

template <typename Value>
struct WipingAllocator : std::allocator<Value> {
  template <typename Other>
  struct rebind {
    using other = WipingAllocator<Other>;
  };
  WipingAllocator() = default;
  template <typename Other>
  WipingAllocator(const WipingAllocator<Other>&) {}
  void deallocate(Value* memory, std::size_t count) {
    explicit_bzero(memory, count * sizeof(Value));
    std::allocator<Value>::deallocate(memory, count);
  }
};

using SecretBytes = std::vector<std::byte, WipingAllocator<std::byte>>;

}  // namespace lockstep
