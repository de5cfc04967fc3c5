// The recorder: the collectives that this process's devices called, in a file that outlives the
// process.
//
// One ring of fixed-size entries for each device, in memory that is mapped from a file: a process
// that is killed in the middle of a store leaves everything before it readable. There is no lock
// and no system call on the way of a collective. Readers (other processes, `lockstep report`) copy
// an entry and drop it when its number is not the expected one, before or after.
//
// The layout is version 1 of the file's format, little endian;
// src/lockstep/flight_recorder/format.py describes and reads it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/futex_wait.h"
#include "base/types.h"

namespace lockstep {

// One collective of one device. Times are of CLOCK_MONOTONIC, in nanoseconds, by TscClock.
struct RecordEntry {
  enum State : std::uint8_t { kEntered = 1, kDone = 2, kRaised = 3 };

  std::atomic<std::uint64_t> number;  // from 1; 0 while the slot is being written
  std::uint64_t clique;
  std::int64_t execution;
  std::int64_t channel;
  std::uint64_t count;
  std::uint64_t bytes;
  std::uint32_t sequence;
  std::uint8_t op;
  std::uint8_t dtype;
  std::uint8_t reduction;
  std::atomic<std::uint8_t> state;
  std::int64_t entered_ns;
  std::atomic<std::int64_t> arrived_ns;  // all members had arrived; 0 while they have not
  std::atomic<std::int64_t> done_ns;
  std::int32_t rank;
  std::int32_t source;
  std::int32_t num_targets;
  std::int32_t targets[8];
  std::uint32_t site;  // Origin::site, 0 unless --strict asks for it
};
static_assert(sizeof(RecordEntry) == 128);

// The fields of an entry that are known when the call begins.
struct Described {
  std::uint64_t clique = 0;
  std::int64_t execution = 0;
  std::int64_t channel = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint32_t sequence = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reduction = 0;
  std::int64_t entered_ns = 0;
  std::int32_t rank = 0;
  std::uint32_t site = 0;
};

struct RecorderOptions {
  bool enabled = true;
  std::string path;  // of the file; empty: a memfd
  int process = 0;
  int num_processes = 1;
  int attempt = 0;
  std::uint64_t nonce = 0;
  std::string host;
  std::string label;
};

class Recorder {
 public:
  static constexpr std::uint32_t kEntries = 1024;  // of one ring
  enum State : std::uint32_t { kRunning = 0, kEnded = 1, kFailed = 2 };

  // Never throws for a file that cannot be made: it goes on in memory, and problem() says why.
  explicit Recorder(const RecorderOptions& options);
  ~Recorder();

  int fd() const { return fd_; }
  const std::string& problem() const { return problem_; }

  // Makes the rings of these devices of this process; before the first `begin`.
  void set_devices(const std::vector<int>& ids);
  void add_clique(std::uint64_t hash, const std::vector<int>& devices);
  void set_state(State state);

  // The ring of this device, once `set_devices` has made it. Null for a device that has none.
  struct Ring;
  Ring* ring(int device) const;
  // Starts the entry of a call by the ring's device. Empty where there is no ring.
  static Record begin(Ring* ring, const Call& call, std::uint64_t clique, std::uint32_t sequence,
                      int rank);
  static Record begin(Ring* ring, const Described& described);
  // The device has only now begun what it was given at `begin`: its channel is 1 from here on.
  static void entered(const Record& record, Clock::time_point when);
  static void arrived(const Record& record, Clock::time_point when);
  static void finish(const Record& record, RecordEntry::State state);
  // Ends an entry for which it is not known when all members had arrived.
  static void finish_at(const Record& record, RecordEntry::State state, Clock::time_point when);
  // The ranks from and to which a collective-permute of this rank moves data.
  static void add_source(const Record& record, int rank);
  static void add_target(const Record& record, int rank);

 private:
  struct Header;

  bool make_file(const std::string& path, std::size_t bytes);
  Header& header() const { return *reinterpret_cast<Header*>(base_); }

  std::mutex mutex_;  // guards the clique area and the making of rings
  int fd_ = -1;
  std::string problem_;
  const bool enabled_;
  std::byte* base_ = nullptr;
  std::vector<Ring*> rings_;
};

}  // namespace lockstep
