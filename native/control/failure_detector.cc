#include "control/failure_detector.h"

#include <algorithm>

namespace lockstep {

void Verdict::pass(const std::string& text, Arena& arena) {
  if (!waits()) return arena.abort(text);
  if (!text_) {
    text_ = text;
    due_ = Clock::now() + kOtherWord;
  }
  if (const Alarm* watcher = watcher_.load(std::memory_order_acquire)) watcher->ring();
}

void Verdict::pass_when_due(Arena& arena) {
  if (!text_) return;
  if (waits() && Clock::now() < due_ && !arena.aborted()) return;
  arena.abort(*text_);
  text_.reset();
}

std::chrono::milliseconds Verdict::nap(std::chrono::milliseconds most) const {
  if (!text_) return most;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due_ - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), most);
}

}  // namespace lockstep
