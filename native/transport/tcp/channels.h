// Where the messages of other hosts go: see endpoint.h.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "transport/shm/futex_wait.h"

namespace lockstep {

// Messages of one clique between this process and another one; `place` tells the streams of the
// two apart.
struct Stream {
  std::uint64_t clique;
  std::uint32_t place;
  int process;
  auto operator<=>(const Stream&) const = default;
};

// In front of what a slot holds: it is always sent, and of the rest what the receiver needs.
inline constexpr std::size_t kSlotHeader = 64;

// The receiver's ring, and how much of it has been read.
struct Inlet {
  std::byte* slots;
  std::uint32_t count;
  std::size_t slot_bytes;   // with the header
  Counter* written;         // advanced when a message is there
  Counter* read;            // advanced by whoever has read one
  Counter* bell = nullptr;  // rung after each message
};

// The sender's side: how much the receiver has read.
struct Outlet {
  Counter* read;
  Counter* bell = nullptr;
};

class Streams {
 public:
  static constexpr std::size_t kLargestMessage = 512 << 10;
  // Of messages of one process whose streams are not open here yet. A process that keeps to the
  // protocol is ahead by a few messages in each of its collectives, some MiB in all.
  static constexpr std::size_t kMostEarlyBytes = std::size_t{64} << 20;

  // Before the first message is sent, or expected. What they point to stays.
  void open(const Stream& stream, const Inlet& inlet);
  void open(const Stream& stream, const Outlet& outlet);

  // The reader's side. Messages of a stream come in order, and not before the slot has been read;
  // what breaks these rules throws Error. `room` is where the bytes of a message go; null while the
  // stream is not open here: then they are kept until it is, by `keep`.
  std::byte* room(const Stream& stream, std::uint32_t number, std::size_t bytes);
  void arrived(const Stream& stream);
  void keep(const Stream& stream, std::uint32_t number, std::vector<std::byte> message);
  void released(const Stream& stream, std::uint32_t number);

 private:
  struct Open {
    Inlet inlet;
    std::uint32_t next = 0;
  };
  std::byte* slot(const Open& open, std::uint32_t number, std::size_t bytes) const;
  static void advance(Open& open);

  std::mutex mutex_;
  std::map<Stream, Open> inlets_;
  std::map<Stream, Outlet> outlets_;
  std::map<Stream, std::deque<std::vector<std::byte>>> early_;
  std::map<int, std::size_t> early_bytes_;  // by process
};

}  // namespace lockstep
