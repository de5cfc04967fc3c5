// Takes apart what one connection from another host carries: see endpoint.h. No number that comes
// is trusted: what breaks the rules throws Error before a byte of it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "transport/tcp/channels.h"
#include "transport/tcp/frame.h"

namespace lockstep {

class FrameParser {
 public:
  // The endpoint that owns the parser. It knows whose handshake this is and who may send, and is
  // given the parsed frames.
  class Owner {
   public:
    // The process that greets. Throws Error when the greeting is not accepted.
    virtual int greet(const Frame& greeting, std::span<const std::byte> rest) = 0;
    virtual bool may_send(int process, std::uint32_t kind) const = 0;
    // Notes that the program of a process has ended, after so many messages of the companion, and
    // all that it has sent on this connection has been received.
    virtual void left(int process, std::uint32_t connection, std::uint64_t sent) = 0;
    // The job has failed.
    virtual void aborted(std::string_view text) = 0;
    // The part of a control message of `bytes` bytes that begins at `at`. Throws Error when it is
    // out of turn.
    virtual void control(int process, std::uint64_t bytes, std::size_t at,
                         std::span<const std::byte> part) = 0;

   protected:
    ~Owner() = default;
  };

  // `owner` and `channels` outlive the parser.
  FrameParser(Owner& owner, Channels& channels) : owner_(owner), channels_(channels) {}

  // The process at the other end; -1 before it has greeted.
  int process() const { return process_; }
  // Which of that process's connections this is; 0 before it has greeted.
  std::uint32_t connection() const { return connection_; }
  // Whether it has said, here, that its program has ended.
  bool has_left() const { return has_left_; }

  // The place for the next bytes; never empty. Memory of a rank that waits for them stays while
  // `filling` lives.
  std::span<std::byte> room(Channels::Filling& filling);
  // Takes in as many bytes as have just been read into the room.
  void take(std::size_t bytes);

 private:
  void begin();
  void finish();
  Channels::Part part() const;

  Owner& owner_;
  Channels& channels_;
  int process_ = -1;
  std::uint32_t connection_ = 0;
  bool has_left_ = false;
  Frame frame_;
  std::size_t have_ = 0;         // bytes of the frame and of what follows it
  Channels::Room at_;            // where the latter goes: into a slot, posted memory, or
  std::vector<std::byte> body_;  // here
};

}  // namespace lockstep
