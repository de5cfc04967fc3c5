// A connection whose bytes are neither encrypted nor protected against changes, for networks that
// are trusted. Its ends have proved before, with a session of TLS, that they know the job's key.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "transport/tcp/session.h"

namespace lockstep {

class UnencryptedSession : public Session {
 public:
  explicit UnencryptedSession(int fd) : fd_(fd) {}

  Result handshake() override { return ended_.value_or(Result::kDone); }
  using Session::write;
  Result read(std::span<std::byte> to, std::size_t& moved) override;
  Result write(std::span<const std::byte> head, std::span<const std::byte> body,
               std::size_t& moved) override;
  Result close() override;
  const std::string& problem() const override { return problem_; }

 private:
  // Enough for small frames; what is longer goes straight to where it belongs.
  static constexpr std::size_t kAhead = 8 << 10;

  Result end(int error);

  const int fd_;
  std::array<std::byte, kAhead> ahead_;
  std::span<const std::byte> unread_;  // of `ahead_`
  bool is_drained_ = false;            // the last call of the system got less than it had room for
  std::optional<Result> ended_;
  std::string problem_;
};

}  // namespace lockstep
