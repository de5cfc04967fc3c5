// Bytes between a non-blocking socket and the code that makes sense of them: what was received and
// not used yet, and what was written and has not gone out.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace lockstep {

// 0, EAGAIN, another errno, or this: the other end has sent its last byte.
inline constexpr int kEndOfStream = -1;

class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(std::size_t capacity);

  std::span<std::byte> unread() const { return {memory_.get() + begin_, end_ - begin_}; }
  void consume(std::size_t bytes) { begin_ += bytes; }
  // Appends what there is. What is unread moves: no span of it is good afterwards. Not with as much
  // unread as there is room for.
  int fill(int fd);
  // If it is not full after `fill`, that has taken all there was.
  bool is_full() const { return end_ == capacity_; }

 private:
  const std::size_t capacity_;
  const std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0, end_ = 0;
};

class SendBuffer {
 public:
  explicit SendBuffer(std::size_t capacity);

  bool empty() const { return end_ == 0; }
  std::span<std::byte> room() const { return {memory_.get() + end_, capacity_ - end_}; }
  void add(std::size_t bytes) { end_ += bytes; }  // that were written to `room`
  // 0: all has gone out.
  int flush(int fd);

 private:
  const std::size_t capacity_;
  const std::unique_ptr<std::byte[]> memory_;
  std::size_t sent_ = 0, end_ = 0;
};

}  // namespace lockstep
