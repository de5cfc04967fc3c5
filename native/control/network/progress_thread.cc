#include "control/network/progress_thread.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"

namespace lockstep {
namespace {

// The interval of checks that no event triggers.
constexpr std::chrono::milliseconds kPollInterval{200};
// How long the progress thread leaves the reading to the ranks after one has read.
constexpr std::chrono::milliseconds kStandBack{1};
// How long it stands back at most while a rank reads: one that has slept over it resumes the
// thread.
constexpr std::chrono::milliseconds kMaxStandBack{5};

// The parser of frames knows neither aborts nor control messages.
static_assert(Frame::kMaxAbortText == kAbortText);
static_assert(Frame::kMaxControlPart == ControlMessages::kPart);

}  // namespace

ProgressThread::ProgressThread(int listener, const std::vector<int>& pids,
                               std::vector<bool> is_remote, int process, std::uint64_t nonce,
                               const std::vector<std::string>& labels, const Security& security,
                               Channels& channels, Arena& arena, int num_agents,
                               std::chrono::milliseconds greeting_timeout, Companion* companion,
                               Deferred deferred)
    : process_(process),
      greeting_timeout_(greeting_timeout),
      nonce_(nonce),
      labels_(labels),
      security_(security),
      deferred_(std::move(deferred)),
      channels_(channels),
      arena_(arena),
      companion_(companion),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      acceptor_(listener, epoll_.get()),
      roster_(std::move(is_remote), num_agents, process, nonce, labels, arena, security.encrypts(),
              channels.connections(), deferred_.is_deferred),
      failures_(process, roster_.num_members(), roster_.first_agent(), labels, arena),
      left_(roster_.num_members()),
      refusals_(labels[static_cast<std::size_t>(process)]),
      stripe_readers_(channels.connections() - 1, *this) {
  if (!watch_input(epoll_.get(), wake_.fd(), nullptr))
    throw Error(std::string("lockstep: cannot watch for other hosts: ") + std::strerror(errno) +
                ".");
  failures_.watch_siblings(pids, epoll_.get());
  failure_ = "lockstep: " + labels_[static_cast<std::size_t>(process_)] +
             " can no longer receive from other hosts: ";
  failure_.reserve(failure_.size() + kMaxReason);
  thread_ = std::thread([this] { run(); });
}

ProgressThread::~ProgressThread() { stop(); }

void ProgressThread::stop() {
  over_ = true;
  control_.close();
  wake_.notify();
  resume_.advance();
  if (thread_.joinable()) thread_.join();
  stripe_readers_.stop();
  std::lock_guard lock(polling_);  // no rank reads any more
  // Further connections are refused, also where a forked child keeps the port open. Where the start
  // has failed they are not: a handshake tells the other process why, a wrong key perhaps.
  if (has_started_ && acceptor_.is_open()) acceptor_.close();
}

void ProgressThread::run() {
  block_signals();
  try {
    while (!over_) {
      if (!stands_back()) {
        poll_until(kPollInterval);
        continue;
      }
      const auto most = a_receiver_reads_ ? kMaxStandBack : kStandBack;
      const double seconds = std::chrono::duration<double>(most).count();
      wait_until(resume_, resume_.load() + 1, WaitLimits{&kNeverAborted, Deadline(seconds), {}});
    }
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of an unknown type");
  }
}

void ProgressThread::wait_for_agents(Clock::time_point end) {
  for (const int agent : roster_.wait_for_agents(end)) failures_.mark_lost(agent, {});
}

// A rank reads, or has done so a moment ago and perhaps soon will again.
bool ProgressThread::stands_back() const {
  if (a_receiver_reads_.load(std::memory_order_acquire)) return true;
  if (receivers_.load(std::memory_order_acquire) != 0) return false;
  const auto idle = Clock::now().time_since_epoch().count() - last_read_.load();
  return Clock::duration(idle) < kStandBack;
}

// Waits without the lock, so that a rank may take over meanwhile.
void ProgressThread::poll_until(std::chrono::milliseconds timeout) {
  {
    std::lock_guard lock(polling_);
    timeout = failures_.deferred_abort().poll_timeout(timeout);
  }
  epoll_event event;
  epoll_wait(epoll_.get(), &event, 1, static_cast<int>(timeout.count()));
  std::lock_guard lock(polling_);
  if (!a_receiver_reads_) poll(std::chrono::milliseconds(0));
}

// Reads as a rank does while it waits. The lock is held while it reads, and kept between.
class ProgressThread::Receiver : public WaitingWork {
 public:
  explicit Receiver(ProgressThread& owner) : owner_(owner), lock_(owner.polling_, std::defer_lock) {
    owner_.receivers_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~Receiver() {
    if (lock_.owns_lock()) {
      owner_.last_read_.store(Clock::now().time_since_epoch().count());
      owner_.a_receiver_reads_.store(false, std::memory_order_release);
      lock_.unlock();
    }
    // Other threads that wait have left the reading to this one.
    if (owner_.receivers_.fetch_sub(1, std::memory_order_acq_rel) > 1 || waited_)
      owner_.resume_.advance();
  }
  void poll() override { read(std::chrono::milliseconds(0)); }
  bool wait(Clock::duration most) override {
    waited_ = true;
    return read(
        std::max(std::chrono::ceil<std::chrono::milliseconds>(most), std::chrono::milliseconds(1)));
  }

 private:
  bool read(std::chrono::milliseconds timeout) {
    if (owner_.over_) return false;
    if (!lock_.owns_lock()) {
      if (!lock_.try_lock()) return false;
      owner_.a_receiver_reads_.store(true, std::memory_order_release);
    }
    try {
      owner_.poll(timeout);
    } catch (const std::exception& error) {
      owner_.fail(error.what());
    }
    if (owner_.over_) give_up();
    return lock_.owns_lock();
  }
  // `stop` waits for the lock.
  void give_up() {
    owner_.a_receiver_reads_.store(false, std::memory_order_release);
    lock_.unlock();
  }

  ProgressThread& owner_;
  std::unique_lock<OwnedMutex> lock_;
  bool waited_ = false;  // long enough for the progress thread to stand back for a while
};

WaitResult ProgressThread::wait(Counter& counter, std::uint32_t target, const WaitLimits& limits,
                                bool receives) {
  if (receives) {
    Receiver receiver(*this);
    return wait_until(counter, target, limits, &receiver);
  }
  if (last_read_.exchange(0) != 0) resume_.advance();
  // A spin would take a core from the threads that send and receive: they are two for a process.
  WaitLimits sleeps = limits;
  sleeps.spin = {};
  return wait_until(counter, target, sleeps);
}

void ProgressThread::poll(std::chrono::milliseconds most) {
  epoll_event events[16];
  const auto timeout = failures_.deferred_abort().poll_timeout(most);
  const int count = epoll_wait(epoll_.get(), events, 16, static_cast<int>(timeout.count()));
  bool others = false;
  for (int i = 0; i < count; ++i)
    if (auto* incoming = static_cast<Incoming*>(events[i].data.ptr))
      advance(*incoming);
    else
      others = true;
  // After the events, one of which may be of a connection that is dropped here.
  if (others) accept_some();
  if (others && !over_) failures_.check_siblings(epoll_.get());
  failures_.deferred_abort().abort_when_due(arena_);
  if (Clock::now() < polled_ + kPollInterval) return;
  drop_late();
  refusals_.report_due();
  if (!over_) lose_ended();
  adopt_left();
  if (deferred_.aborted && arena_.aborted() && !std::exchange(has_relayed_, true))
    deferred_.aborted();
  if (!over_) failures_.check_siblings(epoll_.get());
  if (closes_ && acceptor_.is_open() && roster_.is_complete()) {
    acceptor_.close();
    security_.forget_key();
  }
  acceptor_.resume();
  polled_ = Clock::now();
}

// Nothing is received any more, so the job cannot go on; without a text it would hang. An agent's
// arena is its own, and no process reads it.
void ProgressThread::fail(const char* what) noexcept {
  if (failed_.exchange(true)) return;
  failure_.append(what, std::min(std::strlen(what), kMaxReason - 1)).append(1, '.');
  if (is_agent(process_)) log_or_drop(failure_);
  try {
    arena_.abort(failure_);
    control_.close();
  } catch (...) {  // of an abort listener: the job has its text
  }
}

// What another process of this host knows. A process that has left without a connection to this one
// has sent nothing here: it would have waited for this thread's welcome before.
void ProgressThread::adopt_left() {
  for (int process = 0; process < roster_.first_agent(); ++process)
    if (roster_.is_deferred(process) && has_left(process) == 0 &&
        failures_.has_left_for_others(process) && !roster_.has_greeted(process))
      set_left(process, 0);
}

void ProgressThread::ended(int process, const std::string& why) {
  failures_.connection_ended(process, why);
}

// First of all, because the connection ends too: its other end is to learn of this, not of that.
void ProgressThread::changed(int process, const std::string& why) {
  if (!over_) failures_.fail_changed(process, why);
}

void ProgressThread::lose_ended() {
  for (const auto& one : failures_.take_ended())
    if (roster_.is_deferred(one.process) && failures_.has_left_for_others(one.process))
      set_left(one.process, 0);  // before it could send anything
    else
      failures_.lose(one.process, one.why);
}

// Called by any thread that reads. What a process has sent before is here once all of its
// connections have reported it: one of them may be slower than another.
void ProgressThread::left(int process, std::uint32_t connection, std::uint64_t sent) {
  const std::uint32_t bit = 1u << connection, all = (1u << roster_.connections(process)) - 1;
  const std::uint32_t before = left_[static_cast<std::size_t>(process)].fetch_or(bit);
  if ((before | bit) == all) set_left(process, sent);
}

// The companion comes first: a rank that knows that a process has left sends it nothing more.
void ProgressThread::set_left(int process, std::uint64_t sent) {
  if (companion_ != nullptr && !is_agent(process)) companion_->left(process, sent);
  failures_.set_left(process);
}

void ProgressThread::abandon() {
  for (auto& one : incoming_)
    if (one) one->fd = Descriptor();
  stripe_readers_.abandon();
  acceptor_.abandon();
  epoll_ = Descriptor();
}

}  // namespace lockstep
