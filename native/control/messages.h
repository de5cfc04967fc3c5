// Notes: what the watchers of different hosts write to each other. They come in parts, so that what
// ranks send, and word that the job has failed, goes out between two parts of a long one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <vector>

namespace lockstep {

struct Note {
  enum : int { kNone = -1, kOver = -2 };  // none in time; none will come any more
  int process = kNone;                    // that sent it, or one of these
  std::vector<std::byte> bytes;
};

// Those that have come and nobody has taken yet.
class Notes {
 public:
  static constexpr std::size_t kLongest = std::size_t{16} << 20;
  static constexpr std::size_t kPart = std::size_t{256} << 10;
  // Of all notes that are here or coming. What does not fit is dropped: who asks may ask again.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMost = 10000;  // that are here: empty ones need room too

  // The reader's side. A process's parts come in order, and each note begins with the part at 0;
  // one that is not finished then was given up by its sender. What breaks these rules throws Error.
  void take(int process, std::uint64_t bytes, std::size_t at, std::span<const std::byte> part);
  // No more comes from that process.
  void forget(int process);

  // Returns at once when there is one, and when they are over.
  Note next(double timeout_seconds);
  // What is here can still be taken.
  void close();

 private:
  struct Coming {
    std::size_t bytes = 0, have = 0;
    bool dropped = false;
    std::vector<std::byte> body;
  };
  // False without room.
  bool keep(Coming& coming, std::span<const std::byte> part);
  void give_up(Coming& coming);
  void finish(int process, Coming& coming);

  std::map<int, Coming> coming_;  // the reader's
  std::mutex mutex_;              // guards what follows
  std::condition_variable changed_;
  std::deque<Note> here_;
  std::size_t held_ = 0;  // bytes, of those that are coming too
  bool over_ = false;
};

}  // namespace lockstep
