// The result of a kernel that every device of a process calls with the same block: one of them
// finds it, the others take it, for they share the process's cores.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

namespace lockstep {

// The factor of the latest block, kept for the devices that ask for it next; a device that comes
// with another block while one is being factored does its own. A function of the block's bits
// alone, so it does not matter which device found it, or for which program.
template <typename T>
class Latest {
 public:
  // `factor` overwrites `a` by its factor, and fills `numbers`.
  template <typename Factor>
  void in_place(std::span<T> a, std::span<std::int32_t> numbers, const Factor& factor) {
    std::unique_lock lock(mutex_);
    if (is_block(a, numbers)) {
      // The device that finds it is running, with a turn of its own, and waits for no other.
      found_.wait(lock, [&] { return !busy_ || !is_block(a, numbers); });
      if (is_block(a, numbers)) {
        std::ranges::copy(factor_, a.begin());
        std::ranges::copy(numbers_, numbers.begin());
        return;
      }
    }
    if (busy_) {
      lock.unlock();
      return factor();
    }
    block_.clear();  // matches nothing, should there be no memory for the next
    factor_.resize(a.size());
    numbers_.resize(numbers.size());
    block_.assign(a.begin(), a.end());
    busy_ = true;
    lock.unlock();
    try {
      factor();
    } catch (...) {
      lock.lock();
      block_.clear();  // those that wait find it themselves
      busy_ = false;
      found_.notify_all();
      throw;
    }
    lock.lock();
    std::ranges::copy(a, factor_.begin());
    std::ranges::copy(numbers, numbers_.begin());
    busy_ = false;
    found_.notify_all();
  }

 private:
  // Bits are compared: a NaN is a number like any other here, and -0 is not 0. Blocks of as many
  // elements but another shape have another number of `numbers`.
  bool is_block(std::span<const T> a, std::span<const std::int32_t> numbers) const {
    return block_.size() == a.size() && numbers_.size() == numbers.size() &&
           std::memcmp(block_.data(), a.data(), a.size_bytes()) == 0;
  }

  std::mutex mutex_;
  std::condition_variable found_;
  std::vector<T> block_, factor_;  // of one size while not busy
  std::vector<std::int32_t> numbers_;
  bool busy_ = false;
};

}  // namespace lockstep
