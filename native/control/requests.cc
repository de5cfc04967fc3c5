#include "control/requests.h"

#include <algorithm>

namespace lockstep {
namespace {

// How often programs of which the watchdog knows too little are compared again, at most.
constexpr std::chrono::milliseconds kCompareAgain{100};
// How often a wait checks whether the job has failed.
constexpr std::chrono::milliseconds kPollInterval{50};

}  // namespace

void Requests::set_watched(bool watched) {
  std::lock_guard lock(mutex_);
  watched_ = watched;
  changed_.notify_all();
}

Requests::Shared Requests::post(const std::string& text) {
  return open_.emplace_back(std::make_shared<Open>(Open{{++last_, text}, Clock::now(), false, {}}));
}

// What the watchdog gets next: the oldest that a rank waits for, then the oldest of the others.
const Requests::Open* Requests::first() const {
  const auto waited_for =
      std::ranges::find_if(open_, [](const Shared& open) { return !open->overdue; });
  if (waited_for != open_.end()) return waited_for->get();
  return open_.empty() ? nullptr : open_.front().get();
}

// Each request before this one leaves the front in its own time, so this wait ends.
void Requests::wait(std::unique_lock<std::mutex>& lock, Open& open,
                    std::chrono::milliseconds timeout) {
  const auto over = [&] {
    return open.response || open.overdue || !watched_ || abort_.load(std::memory_order_acquire);
  };
  while (!changed_.wait_for(lock, kPollInterval, [&] { return over() || first() == &open; })) {
  }
  wake_up_.notify();
  const auto end = Clock::now() + timeout;
  while (!over() && Clock::now() < end)
    changed_.wait_until(lock, std::min(end, Clock::now() + kPollInterval), over);
  open.overdue = open.overdue || !open.response;
  changed_.notify_all();
}

Requests::Response Requests::request(const std::string& text, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!watched_) return Response::kUnknown;
  const Shared mine = post(text);
  wait(lock, *mine, timeout);
  std::erase(open_, mine);
  return mine->response.value_or(Response::kUnknown);
}

Requests::Response Requests::compare(const Pair& pair, const std::function<std::string()>& text,
                                     std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  Shared& kept = compared_[pair];
  const bool is_first = kept == nullptr;
  const bool is_known = !is_first && kept->response && *kept->response != Response::kUnknown;
  if (is_known) return *kept->response;
  if (!watched_) return Response::kUnknown;
  if (is_first) kept = post(text());
  const Shared mine = kept;
  if (!mine->response && !mine->overdue) {
    wait(lock, *mine, timeout);
  } else if (mine->response && Clock::now() >= mine->since + kCompareAgain) {
    // The rank has waited for this answer once, and does not again.
    kept = post(text());
    kept->overdue = true;
    wake_up_.notify();
  }
  return mine->response.value_or(Response::kUnknown);
}

Requests::Request Requests::next() {
  std::lock_guard lock(mutex_);
  const Open* open = first();
  return open == nullptr ? Request{} : open->request;
}

bool Requests::respond(std::uint64_t number, Response response) {
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      open_, [&](const Shared& open) { return open->request.number == number; });
  if (found == open_.end()) return false;
  const Shared answered = *found;
  answered->response = response;
  open_.erase(found);
  changed_.notify_all();
  return !answered->overdue;
}

}  // namespace lockstep
