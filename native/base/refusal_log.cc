#include "base/refusal_log.h"

#include <chrono>
#include <string>

#include "base/log.h"

namespace lockstep {

void RefusalLog::add(const std::string& what, const std::string& reason) {
  report_due();
  const std::string line = what + ": " + reason;
  const bool is_first = total_++ == 0;
  const bool is_new = reasons_.size() < kMaxReasons && reasons_.insert(reason).second;
  if (!is_new && Clock::now() < reported_ + interval_) {
    ++unreported_;
    latest_ = line;
    return;
  }
  if (unreported_ == 0) reported_ = Clock::now();
  log_or_drop("lockstep: " + label_ + " " + line + ". The job goes on." +
              (is_first ? " Further refusals are counted once a minute." : ""));
}

void RefusalLog::report_due() {
  const auto now = Clock::now();
  if (unreported_ == 0 || now < reported_ + interval_) return;
  const auto elapsed = std::chrono::ceil<std::chrono::seconds>(now - reported_).count();
  log_or_drop("lockstep: " + label_ + ": " + std::to_string(unreported_) +
              (unreported_ == 1 ? " more refusal in the last " : " more refusals in the last ") +
              std::to_string(elapsed) + " s; the latest: it " + latest_ + ". The job goes on.");
  unreported_ = 0;
  reported_ = now;
}

}  // namespace lockstep
