// Control messages: what the watchdogs of different hosts write to each other. They are sent in
// parts, so that the messages of ranks and an abort go out between two parts of a long one.
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

struct ControlMessage {
  enum : int { kNone = -1, kOver = -2 };  // none in time; none will come any more
  int process = kNone;                    // that sent it, or one of these
  std::vector<std::byte> bytes;
};

// The messages that have come and were not taken yet.
class ControlMessages {
 public:
  static constexpr std::size_t kMaxLength = std::size_t{16} << 20;
  static constexpr std::size_t kPart = std::size_t{256} << 10;
  // Limit for all messages that are here or coming. What does not fit is dropped; a watchdog that
  // gets no response may send its request again.
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMaxCount = 10000;  // that are here: empty ones need room too

  // Called by the progress thread. A process's parts come in order, and each message begins with
  // the part at 0; its sender has then given up an unfinished one. What breaks these rules throws
  // Error.
  void take(int process, std::uint64_t bytes, std::size_t at, std::span<const std::byte> part);
  // No more comes from that process.
  void forget(int process);

  // Returns at once when there is one, and when they are over.
  ControlMessage next(double timeout_seconds);
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

  std::map<int, Coming> coming_;  // for the progress thread
  std::mutex mutex_;              // guards what follows
  std::condition_variable changed_;
  std::deque<ControlMessage> here_;
  std::size_t held_ = 0;  // bytes, of those that are coming too
  bool over_ = false;
};

}  // namespace lockstep
