#include "fabric/reader.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "error.h"

namespace lockstep {
namespace {

// A stranger may take this long to say who he is; then his place is free again.
constexpr std::chrono::seconds kGreetingTime{10};
// What is not an event is looked at this often.
constexpr std::chrono::milliseconds kTurn{200};
constexpr std::ptrdiff_t kMostStrangers = 64;
constexpr std::size_t kMostComplaints = 20;

using Result = Tls::Result;

// What may follow a frame that is no message.
std::size_t longest(std::uint32_t kind) {
  if (kind == Frame::kPoison) return kPoisonText;
  return kind == Frame::kNote ? Notes::kPart : 0;
}

}  // namespace

Reader::Reader(int listener, const std::vector<int>& pids, std::vector<bool> elsewhere, int process,
               std::uint64_t nonce, const std::vector<std::string>& labels, const Tls& tls,
               Streams& streams, Arena& arena, int num_keepers)
    : elsewhere_(std::move(elsewhere)),
      first_keeper_(static_cast<int>(elsewhere_.size()) - num_keepers),
      process_(process),
      nonce_(nonce),
      labels_(labels),
      tls_(tls),
      streams_(streams),
      arena_(arena),
      listener_(fcntl(listener, F_DUPFD_CLOEXEC, 0)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      left_(elsewhere_.size()),
      lost_(elsewhere_.size()),
      met_(elsewhere_.size()) {
  if (listener_.get() < 0 || epoll_.get() < 0 || !watch(listener_.get(), nullptr) ||
      !watch(wake_.fd(), nullptr))
    throw Error(std::string("lockstep: cannot watch for other hosts: ") + std::strerror(errno) +
                ".");
  fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  for (std::size_t i = 0; i < std::min(pids.size(), arena.header().processes.size()); ++i) {
    // A keeper does not share the memory in which they say that they have left.
    if (pids[i] == 0 || is_keeper(process_)) continue;
    Descriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pids[i], 0)));
    // Not every system permits it; then its death is not noticed here.
    if (pidfd.get() < 0 && errno != ESRCH) continue;
    watch(pidfd.get(), nullptr);
    siblings_.push_back({static_cast<int>(i), std::move(pidfd)});
  }
  thread_ = std::thread([this] { run(); });
}

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

std::vector<int> Reader::missing(bool keepers) const {
  std::vector<int> found;
  for (std::size_t i = 0; i < met_.size(); ++i)
    if (elsewhere_[i] && !met_[i] && is_keeper(static_cast<int>(i)) == keepers)
      found.push_back(static_cast<int>(i));
  return found;
}

void Reader::wait_for_processes(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  const auto all_met = [&] { return missing(false).empty(); };
  while (!meeting_.wait_for(lock, std::chrono::milliseconds(50), all_met)) {
    if (arena_.poisoned()) throw Error(arena_.poison_text());
    if (Clock::now() < end) continue;
    std::string names;
    for (const int process : missing(false))
      names += (names.empty() ? "" : ", ") + labels_[static_cast<std::size_t>(process)];
    throw Error("lockstep: " + labels_[static_cast<std::size_t>(process_)] +
                " waited in vain for connections from " + names +
                ". Does a firewall let TCP through between the hosts?");
  }
}

void Reader::wait_for_keepers(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  meeting_.wait_until(lock, end, [&] { return missing(true).empty(); });
  for (const int keeper : missing(true)) miss(keeper, {});
}

void Reader::run() {
  // Signals are for threads that know what to do with them.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (auto looked = Clock::now(); !over_;) {
    epoll_event events[16];
    const auto nap = verdict_.nap(kTurn);
    const int count = epoll_wait(epoll_.get(), events, 16, static_cast<int>(nap.count()));
    for (int i = 0; i < count; ++i) {
      if (auto* incoming = static_cast<Incoming*>(events[i].data.ptr)) {
        advance(*incoming);
        continue;
      }
      accept_all();
      look_after_siblings();
    }
    verdict_.pass_when_due(arena_);
    if (Clock::now() < looked + kTurn) continue;
    drop_the_slow();
    look_after_siblings();
    if (!listening_) listening_ = watch(listener_.get(), nullptr);
    looked = Clock::now();
  }
}

void Reader::accept_all() {
  const auto is_stranger = [](const auto& one) { return !one->shaken; };
  const auto most = kMostStrangers + std::ranges::count(elsewhere_, true);  // who may all come now
  for (;;) {
    Descriptor fd = accept_from(listener_.get());
    if (fd.get() < 0) {
      // Without a descriptor it would stay readable: it is looked at again with the next turn.
      if (errno == EAGAIN) return;
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      listening_ = false;
      return;
    }
    auto made = std::make_unique<Incoming>();
    made->address = name_of_peer(fd.get());
    made->since = Clock::now();
    made->fd = std::move(fd);
    const auto strangers = std::ranges::count_if(incoming_, is_stranger);
    if (strangers >= most) {
      refuse(*made, "too many have connected and not shown that they have the job's key");
      continue;
    }
    try {
      made->session = std::make_unique<Tls::Session>(tls_, made->fd.get(), Tls::Side::kServer);
      if (watch(made->fd.get(), made.get())) incoming_.push_back(std::move(made));
    } catch (const Error& error) {
      refuse(*made, error.what());
    }
  }
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

// Where the next bytes after the frame go.
std::span<std::byte> Reader::Incoming::rest() const {
  const std::size_t done = have - sizeof(Frame);
  const std::size_t header = std::min<std::size_t>(kSlotHeader, frame.bytes);
  if (done < header) return {room + done, header - done};
  return {room + frame.at + done, frame.bytes - done};
}

// False when there is nothing more to read now.
bool Reader::read_some(Incoming& incoming) {
  std::size_t& have = incoming.have;
  std::span<std::byte> to;
  if (have < sizeof(Frame))
    to = {reinterpret_cast<std::byte*>(&incoming.frame) + have, sizeof(Frame) - have};
  else
    to = incoming.rest();
  std::size_t moved = 0;
  const Result result = incoming.session->read(to, moved);
  if (result == Result::kWantsRead || result == Result::kWantsWrite) return false;
  if (result != Result::kDone) throw Error(incoming.session->problem());
  have += moved;
  if (have == sizeof(Frame)) begin(incoming);
  if (have == sizeof(Frame) + incoming.frame.bytes) {
    finish(incoming);
    have = 0;
    incoming.body.clear();
  }
  return true;
}

// A keeper takes no part in collectives, and has no say in whether the job fails: the processes
// know that themselves, and what a keeper takes for a failure may be none of the job's.
bool Reader::may_send(int process, std::uint32_t kind) const {
  if (kind == Frame::kPoison) return !is_keeper(process);
  const bool of_stream = kind == Frame::kMessage || kind == Frame::kRelease;
  return !of_stream || !(is_keeper(process) || is_keeper(process_));
}

// A frame is there, and what follows it is yet to come.
void Reader::begin(Incoming& incoming) {
  const Frame& frame = incoming.frame;
  const bool greets = frame.kind == Frame::kGreeting;
  if (greets != (incoming.process < 0)) throw Error("it does not speak as Lockstep does");
  if (!may_send(incoming.process, frame.kind)) throw Error("keepers do not exchange such frames");
  incoming.room = nullptr;
  static_assert(sizeof(std::size_t) == 8);
  const std::size_t bytes = std::size_t{frame.at} + frame.bytes;
  if (frame.kind == Frame::kMessage && frame.bytes < kSlotHeader)
    throw Error("a message without a header");
  if (frame.kind == Frame::kMessage)
    incoming.room =
        streams_.room({frame.clique, frame.place, incoming.process}, frame.number, bytes);
  else if (bytes > longest(frame.kind) || frame.at != 0)
    throw Error("a frame that is too long");
  if (incoming.room != nullptr) return;
  incoming.body.resize(bytes);
  incoming.room = incoming.body.data();
}

void Reader::finish(Incoming& incoming) {
  const Frame& frame = incoming.frame;
  const Stream stream{frame.clique, frame.place, incoming.process};
  switch (frame.kind) {
    case Frame::kGreeting:
      return greet(incoming);
    case Frame::kMessage:
      if (incoming.room == incoming.body.data())
        return streams_.keep(stream, frame.number, std::move(incoming.body));
      return streams_.arrived(stream);
    case Frame::kRelease:
      return streams_.released(stream, frame.number);
    case Frame::kPoison:
      return arena_.poison({reinterpret_cast<const char*>(incoming.room), frame.bytes});
    case Frame::kLeave:
      left_[static_cast<std::size_t>(incoming.process)].store(1, std::memory_order_release);
      return;
    case Frame::kNote:
      return notes_.take(incoming.process, frame.clique, frame.number,
                         {incoming.room, frame.bytes});
    default:
      throw Error("a frame of a kind that is not known");
  }
}

void Reader::greet(Incoming& incoming) {
  const Frame& frame = incoming.frame;
  if (frame.number != Frame::kVersion) throw Error("it runs another version of Lockstep");
  if (frame.clique != nonce_) throw Error("it belongs to another job");
  // Who sits between could lead a connection to another process than it was made for.
  if (frame.to != static_cast<std::uint32_t>(process_)) throw Error("it looks for another process");
  if (frame.place >= elsewhere_.size() || !elsewhere_[frame.place])
    throw Error("it says to be a process that is not of another host");
  std::lock_guard lock(mutex_);
  if (met_[frame.place]) throw Error("it says to be a process that has connected already");
  met_[frame.place] = true;
  incoming.process = static_cast<int>(frame.place);
  meeting_.notify_all();
}

void Reader::end(Incoming& incoming, const std::string& why) {
  if (incoming.process >= 0) {
    notes_.forget(incoming.process);
    lose(incoming.process, why);
  } else {
    refuse(incoming, why);
  }
  // Closing does not do it while a forked child keeps the connection open.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, incoming.fd.get(), nullptr);
  std::erase_if(incoming_, [&](const auto& one) { return one.get() == &incoming; });
}

void Reader::refuse(const Incoming& incoming, const std::string& why) {
  if (over_ || refused_ > kMostComplaints) return;
  const bool last = refused_++ == kMostComplaints;
  std::fprintf(stderr, "lockstep: %s refused a connection from %s: %s. The job goes on.%s\n",
               labels_[static_cast<std::size_t>(process_)].c_str(), incoming.address.c_str(),
               why.c_str(), last ? " More of them are not told." : "");
}

void Reader::lose(int process, const std::string& why) {
  if (over_ || has_left(process).load(std::memory_order_acquire) != 0) return;
  miss(process, "lockstep: " + labels_[static_cast<std::size_t>(process)] +
                    " has ended, or its host cannot be reached: " +
                    labels_[static_cast<std::size_t>(process_)] + " has lost its connection (" +
                    why + "). Its own output may tell why.");
}

// The watcher looks for who is lost as soon as it hears of a verdict. The job needs no keeper and
// goes on without one, even one that broke the rules; and a keeper is no judge of the job.
void Reader::miss(int process, const std::string& text) {
  lost_[static_cast<std::size_t>(process)].store(true, std::memory_order_release);
  if (!is_keeper(process) && !is_keeper(process_)) verdict_.pass(text, arena_);
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
  const auto latest = Clock::now() - kGreetingTime;
  for (std::size_t i = incoming_.size(); i-- > 0;)
    if (!incoming_[i]->shaken && incoming_[i]->since < latest)
      end(*incoming_[i], "it has not shown in 10 s that it has the job's key");
}

}  // namespace lockstep
