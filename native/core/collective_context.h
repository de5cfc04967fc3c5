// One collective of one process, as its leader sees it: waits with the collective's deadline, and
// the checks of what the peers send. A peer is a process of the clique, named by the index of its
// group; a local peer is one of this host, named by its index in Clique::locals.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/clique.h"

namespace lockstep {

class CollectiveContext {
 public:
  CollectiveContext(Clique& clique, std::span<const Call* const> calls, std::uint32_t sequence);
  // Nothing goes to the memory of a `post_receive` any more.
  ~CollectiveContext();
  CollectiveContext(const CollectiveContext&) = delete;
  CollectiveContext& operator=(const CollectiveContext&) = delete;

  Clique& clique() { return clique_; }
  int locals() const { return static_cast<int>(clique_.locals().size()); }
  int local_self() const { return clique_.local_self(); }
  // The ranks of a local peer.
  std::span<const int> local_ranks(int local) const {
    return clique_.group(clique_.locals()[static_cast<std::size_t>(local)]).ranks;
  }
  std::span<const int> own_ranks() const { return clique_.group(clique_.self()).ranks; }

  // A free slot of one of this process's rings; nothing is sent before `publish`.
  std::byte* acquire(BroadcastRing& ring);
  void publish(BroadcastRing& ring) { ring.publish(signature_); }
  // The next message of a local peer's ring. Throws when the peer is in another collective.
  const std::byte* await(BroadcastRing& ring);

  // Sends the message that fill(slot) writes on this process's partials ring. Returns the slot.
  template <typename Fill>
  std::byte* send_partials(Fill fill) {
    BroadcastRing& own = clique_.partials(local_self());
    std::byte* message = acquire(own);
    fill(message);
    publish(own);
    return message;
  }
  // Calls take(local, message) with the next message of each local peer's partials ring.
  template <typename Take>
  void take_partials(Take take) {
    for (int local = 0; local < locals(); ++local) {
      if (local == local_self()) continue;
      take(local, await(clique_.partials(local)));
      clique_.partials(local).release();
    }
  }
  // These messages by local peer, with `own` as that of this process, until `release_partials`.
  std::vector<const std::byte*> await_partials(const std::byte* own);
  void release_partials();

  // Sends to a peer of another host: at most Clique::link_capacity bytes, which may be overwritten
  // when this returns.
  void send(int peer, std::span<const std::byte> payload);
  // The next message of a peer of another host, until `release`. Throws when the peer is in another
  // collective.
  const std::byte* receive(int peer);
  void release(int peer);
  // Names the place for the payload of the peer's next message that has none yet; empty: its slot.
  // If the payload goes there, `receive` returns that place, and nothing is left to copy. Best
  // effort; false when all messages that can be on their way have a place. What is there may be
  // overwritten from now on.
  bool post_receive(int peer, std::span<std::byte> to);

  // All members of the clique have arrived in this collective: recorded once.
  void all_arrived();

  // Whether this collective, in which so many bytes go from one process of the host to another,
  // moves them in one copy. The same answer in every process of the host: the first time, they try
  // it and exchange the results.
  bool single_copy(std::size_t bytes);
  // Copies from the memory of a local peer.
  void read(int local, std::span<const MemoryPiece> pieces);
  // Returns when every local peer has released all messages of this process's ring: none of them
  // reads a buffer any more whose address was in one.
  void drain(BroadcastRing& ring);

 private:
  bool agree_on_single_copy();
  // Whether every process of the host has sent true.
  bool all_agree(bool mine);
  int peer_of(int local) const { return clique_.locals()[static_cast<std::size_t>(local)]; }
  void wait(Counter& counter, std::uint32_t target, int peer);
  void check(const Signature& theirs, int peer);
  bool has_received(int peer) const;
  std::string not_arrived(int peer) const;
  [[noreturn]] void give_up(int peer);
  [[noreturn]] void give_up_on(int peer);

  Clique& clique_;
  std::span<const Call* const> calls_;
  Signature signature_;
  WaitLimits limits_;
  std::uint32_t first_;  // the number of this collective's first message on the partials rings
  int arrived_ = 0;      // local peers whose first message is there
  bool waited_ = false;  // for at least one of them
  bool all_arrived_ = false;
  std::vector<int> posted_;  // peers of a `post_receive`
};

}  // namespace lockstep
