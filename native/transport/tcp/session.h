// One end of a connection between hosts, and what makes it: TLS (tls.h) is one implementation.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

// Used by one thread at a time. The descriptor is non-blocking and remains its owner's.
//
// Sessions read ahead: the descriptor says whether there is something to read only after
// kWantsRead. A call may want the other direction (a read kWantsWrite). kClosed and kFailed are
// final, for all calls.
class Session {
 public:
  enum class Result { kDone, kWantsRead, kWantsWrite, kClosed, kFailed };

  virtual ~Session() = default;
  // Until this is kDone nothing can be read or written.
  virtual Result handshake() = 0;
  // `moved`: how many bytes were; with kDone more than 0 (unless the span is empty), else 0. The
  // rest of `to` may have been written to.
  virtual Result read(std::span<std::byte> to, std::size_t& moved) = 0;
  // Likewise; takes a part of `head` and of the `body` that follows it. After kWantsRead or
  // kWantsWrite the same bytes have to be offered again, perhaps at another address and with more
  // behind them.
  virtual Result write(std::span<const std::byte> head, std::span<const std::byte> body,
                       std::size_t& moved) = 0;
  Result write(std::span<const std::byte> from, std::size_t& moved) {
    return write({}, from, moved);
  }
  // Says that nothing follows: the other end reads an orderly kClosed. Not with a write unfinished.
  virtual Result close() = 0;
  // Why a call returned kFailed or kClosed: the part of a sentence.
  virtual const std::string& problem() const = 0;
  // Whether it failed because what arrived is not what the other end has sent, or, in a handshake,
  // because the two ends have different keys. Only sessions that are encrypted can know.
  virtual bool was_changed() const { return false; }
};

// Makes the sessions of one endpoint, from any thread. It outlives them.
class Security {
 public:
  enum class Side { kClient, kServer };

  virtual ~Security() = default;
  virtual std::unique_ptr<Session> open(int fd, Side side) const = 0;  // throws Error
  // Whether what follows the greeting and its answer is encrypted, too. If not, `unencrypted` then
  // takes the place of the session.
  virtual bool encrypts() const { return true; }
  // Wipes the key from memory: no handshake is completed any more. No other thread is in one.
  virtual void forget_key() const = 0;
};

}  // namespace lockstep
