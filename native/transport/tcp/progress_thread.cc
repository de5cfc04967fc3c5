#include "transport/tcp/progress_thread.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {
namespace {

// What is not an event is looked at this often.
constexpr std::chrono::milliseconds kTurn{200};
// New connections must not keep the thread from those that carry collectives.
constexpr int kAcceptsPerTurn = 16;
constexpr std::size_t kReason = 200;  // bytes of an exception's text
constexpr std::size_t kMostComplaints = 20;

using Result = Tls::Result;

}  // namespace

Reader::Reader(int listener, const std::vector<int>& pids, std::vector<bool> elsewhere, int process,
               std::uint64_t nonce, const std::vector<std::string>& labels, const Tls& tls,
               Streams& streams, Arena& arena, int num_agents,
               std::chrono::milliseconds greeting_time)
    : elsewhere_(std::move(elsewhere)),
      first_agent_(static_cast<int>(elsewhere_.size()) - num_agents),
      process_(process),
      greeting_time_(greeting_time),
      nonce_(nonce),
      labels_(labels),
      tls_(tls),
      streams_(streams),
      arena_(arena),
      listener_(fcntl(listener, F_DUPFD_CLOEXEC, 0)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      address_(address_of(listener)),
      left_(elsewhere_.size()),
      lost_(elsewhere_.size()),
      met_(elsewhere_.size()) {
  if (listener_.get() < 0 || epoll_.get() < 0 || !watch(listener_.get(), nullptr) ||
      !watch(wake_.fd(), nullptr))
    throw Error(std::string("lockstep: cannot watch for other hosts: ") + std::strerror(errno) +
                ".");
  fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  for (std::size_t i = 0; i < std::min(pids.size(), arena.header().processes.size()); ++i) {
    // An agent does not share the memory in which they say that they have left.
    if (pids[i] == 0 || is_agent(process_)) continue;
    Descriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pids[i], 0)));
    // Not every system permits it; then its death is not noticed here.
    if (pidfd.get() < 0 && errno != ESRCH) continue;
    watch(pidfd.get(), nullptr);
    siblings_.push_back({static_cast<int>(i), std::move(pidfd)});
  }
  failure_ = "lockstep: " + labels_[static_cast<std::size_t>(process_)] +
             " can no longer receive from other hosts: ";
  failure_.reserve(failure_.size() + kReason);
  thread_ = std::thread([this] { run(); });
}

Reader::Incoming::Incoming(Reader& reader, Descriptor taken)
    : fd(std::move(taken)),
      address(name_of_peer(fd.get())),
      frames(reader, reader.streams_, reader.notes_, reader.arena_) {}

Reader::~Reader() { stop(); }

void Reader::stop() {
  over_ = true;
  notes_.close();
  wake_.ring();
  if (thread_.joinable()) thread_.join();
}

bool Reader::watch(int fd, Incoming* incoming) {
  epoll_event event{EPOLLIN, {.ptr = incoming}};
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

std::vector<int> Reader::missing(bool agents) const {
  std::vector<int> found;
  for (std::size_t i = 0; i < met_.size(); ++i)
    if (elsewhere_[i] && !met_[i] && is_agent(static_cast<int>(i)) == agents)
      found.push_back(static_cast<int>(i));
  return found;
}

void Reader::wait_for_processes(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  const auto all_met = [&] { return missing(false).empty(); };
  while (!meeting_.wait_for(lock, std::chrono::milliseconds(50), all_met)) {
    if (arena_.aborted()) throw Error(arena_.abort_text());
    if (Clock::now() < end) continue;
    std::string names;
    for (const int process : missing(false))
      names += (names.empty() ? "" : ", ") + labels_[static_cast<std::size_t>(process)];
    throw Error("lockstep: " + labels_[static_cast<std::size_t>(process_)] +
                " waited in vain for connections from " + names +
                ". Does a firewall let TCP through between the hosts?");
  }
}

void Reader::wait_for_agents(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  meeting_.wait_until(lock, end, [&] { return missing(true).empty(); });
  for (const int agent : missing(true)) miss(agent, {});
}

void Reader::run() {
  // Signals are for threads that know what to do with them.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  try {
    while (!over_) turn();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of an unknown type");
  }
}

void Reader::turn() {
  epoll_event events[16];
  const auto nap = verdict_.nap(kTurn);
  const int count = epoll_wait(epoll_.get(), events, 16, static_cast<int>(nap.count()));
  bool others = false;
  for (int i = 0; i < count; ++i)
    if (auto* incoming = static_cast<Incoming*>(events[i].data.ptr))
      advance(*incoming);
    else
      others = true;
  // After the events: one of them may be of a connection that is dropped here.
  if (others) {
    accept_some();
    look_after_siblings();
  }
  verdict_.pass_when_due(arena_);
  if (Clock::now() < looked_ + kTurn) return;
  drop_the_slow();
  look_after_siblings();
  if (closes_ && listener_.get() >= 0) close_port();
  if (!listening_ && listener_.get() >= 0) listening_ = watch(listener_.get(), nullptr);
  looked_ = Clock::now();
}

// What comes is not read any more, so the job cannot go on; without a text it would hang. A
// agent's arena is its own, and no process reads it.
void Reader::fail(const char* what) noexcept {
  failure_.append(what, std::min(std::strlen(what), kReason - 1)).append(1, '.');
  if (is_agent(process_)) log_or_drop(failure_);
  try {
    arena_.abort(failure_);
    notes_.close();
  } catch (...) {  // a herald's: the job has its text
  }
}

void Reader::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn && listener_.get() >= 0; ++i) {
    Descriptor fd = accept_from(listener_.get());
    if (fd.get() < 0) {
      // Without a descriptor it would stay readable: it is looked at again with the next turn.
      if (errno == EAGAIN) return;
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      listening_ = false;
      return;
    }
    make_room();
    auto made = std::make_unique<Incoming>(*this, std::move(fd));
    try {
      made->session = std::make_unique<Tls::Session>(tls_, made->fd.get(), Tls::Side::kServer);
      if (watch(made->fd.get(), made.get())) incoming_.push_back(std::move(made));
    } catch (const Error& error) {
      refuse(*made, error.what());
    }
  }
}

// The oldest has had the most time to show that it has the key. A process that is pushed out so
// tries again.
void Reader::make_room() {
  const auto is_stranger = [](const auto& one) { return !one->shaken; };
  const auto most = kMostStrangers + std::ranges::count(elsewhere_, true);
  if (std::ranges::count_if(incoming_, is_stranger) < most) return;
  end(**std::ranges::find_if(incoming_, is_stranger),
      "too many have connected and not shown that they have the job's key, and it is the oldest");
}

// All have met: what connects now is no process of this job.
void Reader::close_port() {
  {
    std::lock_guard lock(mutex_);
    if (!missing(false).empty() || !missing(true).empty()) return;
  }
  // Others have copies of the descriptor: closing this one would not do it.
  shutdown(listener_.get(), SHUT_RDWR);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  listener_ = Descriptor();
  tls_.forget_key();
}

// What cannot be read now comes with the next event: all that is there is read.
void Reader::advance(Incoming& incoming) {
  try {
    if (!shake_hands(incoming)) return;
    while (!over_ && read_some(incoming)) {
    }
  } catch (const Error& error) {
    end(incoming, error.what());
  }
}

bool Reader::shake_hands(Incoming& incoming) {
  if (incoming.shaken) return true;
  const Result result = incoming.session->handshake();
  if (result == Result::kWantsRead || result == Result::kWantsWrite) return false;
  if (result != Result::kDone)
    throw Error("it has not shown that it has the job's key (" + incoming.session->problem() + ")");
  return incoming.shaken = true;
}

// False when there is nothing more to read now.
bool Reader::read_some(Incoming& incoming) {
  std::size_t moved = 0;
  const bool greets = incoming.frames.process() < 0;
  const Result result = incoming.session->read(incoming.frames.room(), moved);
  if (result == Result::kWantsRead || result == Result::kWantsWrite) return false;
  if (result != Result::kDone) throw Error(incoming.session->problem());
  incoming.frames.take(moved);
  if (greets && incoming.frames.process() >= 0) answer(incoming, Frame::kWelcome, {});
  return true;
}

// An agent takes no part in collectives, and has no say in whether the job fails: the processes
// know that themselves, and what an agent takes for a failure may be none of the job's.
bool Reader::may_send(int process, std::uint32_t kind) const {
  if (kind == Frame::kAbort) return !is_agent(process);
  const bool of_stream = kind == Frame::kMessage || kind == Frame::kRelease;
  return !of_stream || !(is_agent(process) || is_agent(process_));
}

int Reader::greet(const Frame& frame) {
  if (frame.number != Frame::kVersion) throw Error("it runs another version of Lockstep");
  if (frame.clique != nonce_) throw Error("it belongs to another job");
  // Who sits between could lead a connection to another process than it was made for.
  if (frame.to != static_cast<std::uint32_t>(process_)) throw Error("it looks for another process");
  if (frame.place >= elsewhere_.size() || !elsewhere_[frame.place])
    throw Error("it says to be a process that is not of another host");
  std::lock_guard lock(mutex_);
  if (met_[frame.place]) throw Error("it says to be a process that has connected already");
  met_[frame.place] = true;
  meeting_.notify_all();
  return static_cast<int>(frame.place);
}

void Reader::left(int process) {
  left_[static_cast<std::size_t>(process)].store(1, std::memory_order_release);
}

// A frame and a short text: a connection on which nothing was sent before has room for them.
void Reader::answer(Incoming& incoming, std::uint32_t kind, std::string_view text) {
  const NoBrokenPipe quiet;
  const Frame frame{.kind = kind,
                    .place = static_cast<std::uint32_t>(process_),
                    .clique = nonce_,
                    .number = Frame::kVersion,
                    .bytes = static_cast<std::uint32_t>(text.size()),
                    .to = static_cast<std::uint32_t>(incoming.frames.process())};
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
  bytes += text;
  std::size_t moved = 0;
  const Result result = incoming.session->write(std::as_bytes(std::span(bytes)), moved);
  if (result != Result::kDone || moved != bytes.size()) throw Error("it takes no answer");
}

void Reader::end(Incoming& incoming, const std::string& why) {
  if (incoming.frames.process() >= 0) {
    notes_.forget(incoming.frames.process());
    lose(incoming.frames.process(), why);
  } else {
    refuse(incoming, why);
  }
  // Closing does not do it while a forked child keeps the connection open.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, incoming.fd.get(), nullptr);
  std::erase_if(incoming_, [&](const auto& one) { return one.get() == &incoming; });
}

void Reader::refuse(Incoming& incoming, const std::string& why) {
  if (over_) return;
  try {
    if (incoming.shaken)
      answer(incoming, Frame::kRefusal, std::string_view(why).substr(0, kReason));
  } catch (const Error&) {  // it has gone
  }
  if (refused_ > kMostComplaints) return;
  const bool last = refused_++ == kMostComplaints;
  log_or_drop("lockstep: " + labels_[static_cast<std::size_t>(process_)] +
              " refused a connection from " + incoming.address + ": " + why + ". The job goes on." +
              (last ? " More of them are not told." : ""));
}

void Reader::lose(int process, const std::string& why) {
  if (over_ || has_left(process).load(std::memory_order_acquire) != 0) return;
  miss(process, "lockstep: " + labels_[static_cast<std::size_t>(process)] +
                    " has ended, or its host cannot be reached: " +
                    labels_[static_cast<std::size_t>(process_)] + " has lost its connection (" +
                    why + "). Its own output may tell why.");
}

// The watcher looks for who is lost as soon as it hears of a verdict. The job needs no agent and
// goes on without one, even one that broke the rules; and an agent is no judge of the job.
void Reader::miss(int process, const std::string& text) {
  lost_[static_cast<std::size_t>(process)].store(true, std::memory_order_release);
  if (!is_agent(process) && !is_agent(process_)) verdict_.pass(text, arena_);
}

void Reader::abandon() {
  for (auto& one : incoming_)
    if (one) one->fd = Descriptor();
  listener_ = Descriptor();
  epoll_ = Descriptor();
}

void Reader::look_after_siblings() {
  std::erase_if(siblings_, [&](const Sibling& sibling) {
    pollfd asked{sibling.pidfd.get(), POLLIN, 0};
    const bool ended = sibling.pidfd.get() < 0 || poll(&asked, 1, 0) > 0;
    const auto index = static_cast<std::size_t>(sibling.process);
    if (ended && !over_ && arena_.header().processes[index].left.load() == 0)
      miss(sibling.process, "lockstep: " + labels_[index] +
                                " was killed or has crashed. Its own output may tell why.");
    if (ended) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, sibling.pidfd.get(), nullptr);
    return ended;
  });
}

void Reader::drop_the_slow() {
  const auto latest = Clock::now() - greeting_time_;
  for (std::size_t i = incoming_.size(); i-- > 0;)
    if (incoming_[i]->frames.process() < 0 && incoming_[i]->since < latest)
      end(*incoming_[i], incoming_[i]->shaken
                             ? "it has not said in time which process it is"
                             : "it has not shown in time that it has the job's key");
}

}  // namespace lockstep
