#include "core/job.h"

#include <iomanip>
#include <new>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "core/clique.h"

namespace lockstep {
namespace {

// Waking a sleeper on an idle core takes 60 us and more on virtual machines. A spin shorter than
// that never recovers from the first sleep: each side gives up just before the other one is awake.
constexpr std::chrono::microseconds kSpin{200};

// How long an error waits for the words of the watchdog, whose thread may get no processor on a
// busy machine, or may wait 2 s for a key-value store that is out of reach.
constexpr std::chrono::milliseconds kRequestTimeout{5000};
// After so many polls without a collective a program that has ended is believed to have none left.
constexpr int kQuietPolls = 60;
// The watchdog of another process of this host sees what comes later than that.
constexpr int kQuietPollsOfHost = 4;
constexpr std::chrono::milliseconds kQuietInterval{5};
// A job that has failed ends its calls at once; one that does not end is not waited for longer.
constexpr int kPollsOfFailed = 200;
// Longer: without an answer two programs count as one, for that call.
constexpr std::chrono::milliseconds kComparisonTimeout{20000};

// The options that stay for the life of the Job: all but the key.
JobOptions kept(const JobOptions& options) {
  JobOptions kept = options;
  kept.endpoint.key = SecretBytes();
  return kept;
}

// "process 3" stands in the text.
bool names_process(std::string_view text) {
  constexpr std::string_view kName = "process ";
  for (auto at = text.find(kName); at != text.npos; at = text.find(kName, at + 1)) {
    const auto digit = at + kName.size();
    if (digit < text.size() && text[digit] >= '0' && text[digit] <= '9') return true;
  }
  return false;
}

RecorderOptions complete(const JobOptions& options) {
  RecorderOptions recorder = options.recorder;
  recorder.process = options.process;
  recorder.num_processes = options.num_processes();
  recorder.nonce = options.nonce;
  recorder.label = options.labels.at(static_cast<std::size_t>(options.process));
  return recorder;
}

}  // namespace

Job::Job(JobOptions options)
    : options_(kept(options)),
      arena_(options_.arena ? options_.arena
                            : std::make_shared<Arena>(options_.arena_fd, options_.nonce)),
      recorder_(complete(options_)),
      requests_(wake_up_, arena_->header().abort_state),
      transports_(options_, std::move(options.endpoint), arena_, wake_up_) {}

Job::~Job() {
  mark_left();
  transports_.stop();  // before the cliques, whose rings they write into
}

std::string Job::timeout_text() const {
  std::ostringstream text;
  text << std::setprecision(15) << options_.timeout_seconds << " s";
  return text.str();
}

void Job::set_devices(const std::vector<int>& ids, const std::vector<int>& processes) {
  std::vector<int> own;
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (processes[i] < 0 || processes[i] >= num_processes())
      throw Error("lockstep: device " + std::to_string(ids[i]) + " belongs to process " +
                  std::to_string(processes[i]) + ", but the job has " +
                  std::to_string(num_processes()) + " processes.");
    process_of_.emplace(ids[i], processes[i]);
    if (processes[i] == process()) own.push_back(ids[i]);
  }
  own_devices_ = static_cast<int>(own.size());
  recorder_.set_devices(own);
}

std::size_t Job::num_devices() const {
  std::lock_guard lock(mutex_);
  return process_of_.size();
}

int Job::process_of(int device) const {
  std::lock_guard lock(mutex_);
  const auto found = process_of_.find(device);
  return found == process_of_.end() ? -1 : found->second;
}

Clique& Job::clique(const std::vector<int>& devices) {
  std::vector<int> processes;
  for (const int device : devices) {
    processes.push_back(process_of(device));
    if (processes.back() < 0)
      throw Error("lockstep: no process owns device " + std::to_string(device) + ".");
  }
  std::lock_guard lock(mutex_);
  auto& slot = cliques_[devices];
  if (!slot) slot = std::make_unique<Clique>(*this, devices, processes);
  return *slot;
}

void Job::forbid(std::string text) {
  std::lock_guard lock(forbidden_mutex_);
  forbidden_text_ = std::move(text);
  forbidden_.store(!forbidden_text_.empty() || !refused_.empty(), std::memory_order_release);
}

void Job::check_allowed(const Origin& origin) {
  if (!forbidden_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(forbidden_mutex_);
  const auto refused = refused_.find(origin.execution);
  if (refused != refused_.end()) throw Error(refused->second);
  if (forbidden_text_.empty()) return;
  if (origin.known()) refused_.emplace(origin.execution, forbidden_text_);
  throw Error(forbidden_text_);
}

bool Job::has_raised_before(const Origin& origin) {
  std::int64_t first = 0;
  if (origin.execution == 0 || first_raised_.compare_exchange_strong(first, origin.execution))
    return false;
  return first != origin.execution;
}

void Job::set_watched(bool watched) {
  requests_.set_watched(watched);
  network().set_watchdog(watched ? &wake_up_ : nullptr);
}

std::string Job::failed(std::string_view text) {
  constexpr std::string_view kOurs = "lockstep: ";
  try {
    const std::string_view what = text.starts_with(kOurs) ? text.substr(kOurs.size()) : text;
    std::string named(text);
    if (!arena_->aborted() && !names_process(text))
      named = "lockstep: " + label(process()) + ": " + std::string(what);
    arena_->abort(named);
    return named;
  } catch (const std::bad_alloc&) {  // which may be what the text is about
    arena_->abort(text);
    throw;
  }
}

std::string Job::diverged(const std::string& text) {
  if (!arena_->aborted()) requests_.request(text, kRequestTimeout);
  arena_->abort(text);
  return arena_->abort_text();
}

std::string Job::timed_out(const std::string& text) {
  if (!arena_->aborted()) requests_.request("deadline " + text, kRequestTimeout);
  arena_->abort(text);
  return arena_->abort_text();
}

std::string Job::has_ended(int process, const std::string& what) {
  return diverged("lockstep: " + what + ": " + label(this->process()) + " waits for " +
                  label(process) + ", whose program has ended. " + kEndsEarlyHint);
}

void Job::mark_left() {
  if (auto* own = arena_->process(process())) own->left.store(1, std::memory_order_release);
}

void Job::finish() {
  std::uint64_t seen = begun_.load();
  // Counts scans instead of time: a machine that stops this thread stops its peers too.
  const int polls = network().spans_hosts() ? kQuietPolls : kQuietPollsOfHost;
  for (int quiet = 0, failed = 0; quiet < polls && failed < kPollsOfFailed;) {
    std::this_thread::sleep_for(kQuietInterval);
    if (arena_->aborted()) ++failed;
    const std::uint64_t begun = begun_.load();
    quiet = begun == seen && begun == ended_.load() ? quiet + 1 : 0;
    seen = begun;
  }
}

void Job::leave(Recorder::State state) {
  recorder_.set_state(state);
  // A process that has failed says more in its abort.
  if (state != Recorder::kEnded) return;
  mark_left();
  network().leave();
}

void Job::retire() {
  network().leave();
  network().stop();
}

bool Job::may_meet(const Origin& mine, int peer, const Origin& theirs) {
  if (mine.other_line(theirs) || mine.channel != theirs.channel) return false;
  if (arena_->aborted()) return false;
  const auto text = [&] {
    return "programs " + std::to_string(mine.execution) + " " + std::to_string(mine.channel) + " " +
           std::to_string(peer) + " " + std::to_string(theirs.execution) + " " +
           std::to_string(theirs.channel);
  };
  const Requests::Pair pair{peer, theirs.execution - mine.execution};
  const auto response = requests_.compare(pair, text, kComparisonTimeout);
  // The job may fail during the comparison, because of this very difference.
  return response != Requests::Response::kNo && !arena_->aborted();
}

std::chrono::nanoseconds Job::process_spin() const {
  return options_.oversubscribed ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(kSpin);
}

std::chrono::nanoseconds Job::sibling_spin(int siblings) const {
  return siblings <= cores() && !options_.oversubscribed ? std::chrono::nanoseconds(kSpin)
                                                         : std::chrono::nanoseconds(0);
}

std::chrono::nanoseconds Job::sharing_spin() const {
  return sibling_spin(own_devices_ + (network().spans_hosts() ? 1 : 0));
}

}  // namespace lockstep
