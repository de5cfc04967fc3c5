#include "control/messages.h"

#include <new>
#include <utility>

#include "base/error.h"
#include "base/futex_wait.h"

namespace lockstep {

void ControlMessages::take(int process, std::uint64_t bytes, std::size_t at,
                           std::span<const std::byte> part) {
  Coming& coming = coming_[process];
  if (at == 0) {
    give_up(coming);
    if (bytes > kMaxLength) throw Error("a control message that is too long");
    coming.bytes = bytes;
  }
  const bool empty = part.empty() && bytes != 0;
  if (bytes != coming.bytes || at != coming.have || part.size() > coming.bytes - at || empty)
    throw Error("a part of a control message out of turn");
  coming.have += part.size();
  if (!coming.dropped && !keep(coming, part)) {
    give_up(coming);
    coming = {.bytes = bytes, .have = at + part.size(), .dropped = true, .body = {}};
  }
  if (coming.have == coming.bytes) finish(process, coming);
}

bool ControlMessages::keep(Coming& coming, std::span<const std::byte> part) {
  {
    std::lock_guard lock(mutex_);
    if (over_ || part.size() > kMaxBytes - held_ || here_.size() >= kMaxCount) return false;
    held_ += part.size();
  }
  try {
    coming.body.insert(coming.body.end(), part.begin(), part.end());
    return true;
  } catch (const std::bad_alloc&) {
    std::lock_guard lock(mutex_);
    held_ -= part.size();
    return false;
  }
}

void ControlMessages::give_up(Coming& coming) {
  std::lock_guard lock(mutex_);
  held_ -= coming.body.size();
  coming = {};
}

void ControlMessages::finish(int process, Coming& coming) {
  const bool dropped = coming.dropped;
  ControlMessage message{process, std::move(coming.body)};
  coming = {};
  if (dropped) return;
  std::lock_guard lock(mutex_);
  if (here_.size() >= kMaxCount) {
    held_ -= message.bytes.size();
    return;
  }
  here_.push_back(std::move(message));
  changed_.notify_one();
}

void ControlMessages::forget(int process) {
  const auto found = coming_.find(process);
  if (found == coming_.end()) return;
  give_up(found->second);
  coming_.erase(found);
}

ControlMessage ControlMessages::next(double timeout_seconds) {
  const auto end = Clock::now() + bounded(timeout_seconds);
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [&] { return over_ || !here_.empty(); });
  if (here_.empty()) return {over_ ? ControlMessage::kOver : ControlMessage::kNone, {}};
  ControlMessage message = std::move(here_.front());
  here_.pop_front();
  held_ -= message.bytes.size();
  return message;
}

void ControlMessages::close() {
  std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

}  // namespace lockstep
