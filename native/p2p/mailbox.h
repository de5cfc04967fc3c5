// Messages from one rank to another: what collective-permute is made of.
//
// A permute is not a meeting of the whole clique: ranks without a source and without a target make
// no call at all. So each ordered pair of ranks has its own channel, and messages of a pair match
// in the order in which they were sent. Ranks of one process hand over a pointer and copy once;
// between processes the message streams through a small ring of slots in shared memory, which
// exists from the first message of the pair on. A large message goes as its address in one slot,
// for a receiver that has found out that it can read the sender's memory; the sender's request is
// then complete when the receiver has released the slot.
//
// A rank waits for several things at once (room to send, data to receive), so whoever does
// something for a rank rings that rank's bell, and the rank looks at all its requests again.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/shm/futex_wait.h"
#include "transport/tcp/channels.h"
#include "xla_probe/origin.h"

namespace lockstep {

class Clique;

// One send or receive, from the call that starts it to the wait that ends it.
struct Request {
  enum Kind { kSend, kReceive } kind;
  int peer;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  Origin origin;
  std::size_t moved = 0;
  bool started = false;
  std::uint32_t offered = 0;  // the slot that holds the address of a started send between processes
  // Within a process the receiver completes the sender's request.
  std::atomic<bool> complete{false};
};

class Mailbox {
 public:
  static std::size_t footprint(std::size_t ranks);
  // `memory` starts as zeros and is the same for all processes of the clique.
  Mailbox(Clique& clique, std::byte* memory);

  Counter& bell(int rank) { return bells_[rank]; }
  int process_of(int rank) const;
  // Moves what can be moved without waiting.
  void progress(int self, Request& request);
  // Takes back a send whose rank gives up; its buffer is not read after this returns.
  void withdraw(int self, Request& request);

 private:
  struct LocalChannel {
    std::mutex mutex;
    std::deque<Request*> sent;
  };

  bool same_process(int a, int b) const;
  std::size_t pair(int source, int target) const;
  void send_local(int self, Request& request);
  void receive_local(int self, Request& request);
  void send_shared(int self, Request& request);
  void receive_shared(int self, Request& request);
  // Throws Divergence unless the message is the one that the request expects.
  void check(int self, const Request& request, std::size_t bytes, const Origin& origin);
  // Null while the sender has not made it.
  std::byte* region(int source, int target, bool make);
  std::byte* region_elsewhere(int source, int target);
  Stream stream(int source, int target, int peer) const;
  Watch sending() const;

  Clique& clique_;
  Counter* bells_;
  std::atomic<std::uint64_t>* offsets_;  // [source][target], into the arena
  std::vector<int> group_of_;
  std::vector<std::unique_ptr<LocalChannel>> local_;  // [source][target], null between processes
  // [source][target], this process's end of a pair with a rank of another host, once it is used.
  std::vector<std::shared_ptr<void>> elsewhere_;
};

// A rank's end of the mailbox. Used by one thread at a time.
class Port {
 public:
  Port(Clique& clique, int rank) : clique_(clique), rank_(rank) {}
  ~Port() { forget_all(); }

  Request* send(int target, const std::byte* data, std::size_t bytes, const Origin& origin);
  Request* receive(int source, std::byte* data, std::size_t bytes, const Origin& origin);
  // Ends the request and forgets it. Throws Error at the deadline or when the job has failed.
  void wait(Request* request);

 private:
  Request* add(Request::Kind kind, int peer, const std::byte* from, std::byte* to,
               std::size_t bytes, const Origin& origin);
  // Runs `step`; when it throws, the job is aborted and no request of this rank stays behind.
  template <typename Step>
  void guarded(Step step);
  [[noreturn]] void give_up(const Request& request);
  void forget_all();
  // Whether an older request of the same pair has to be served first.
  bool behind_another(std::size_t index) const;

  Clique& clique_;
  int rank_;
  std::vector<std::unique_ptr<Request>> pending_;
};

}  // namespace lockstep
