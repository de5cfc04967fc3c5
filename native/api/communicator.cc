#include "api/communicator.h"

#include "base/error.h"
#include "collectives/collectives.h"
#include "core/job.h"
#include "recorder/tsc_clock.h"

namespace lockstep {

Communicator::Communicator(Clique& clique, int rank)
    : clique_(clique),
      rank_(rank),
      ring_(clique.job().recorder().ring(clique.devices()[static_cast<std::size_t>(rank)])),
      port_(clique, rank) {}

void Communicator::run(Call call) {
  std::lock_guard lock(mutex_);
  run_locked(call);
}

// A program that has caught the error and goes on gets it again: that is no new failure.
static std::string as_earlier(std::string_view text) {
  constexpr std::string_view kOurs = "lockstep: ";
  if (text.starts_with(kOurs)) text.remove_prefix(kOurs.size());
  return std::string(kOurs) + "earlier failure: " + std::string(text);
}

template <typename Step>
auto Communicator::recorded(const Record& record, const Origin& origin, Step step) {
  try {
    return step();
  } catch (const Error& error) {
    Recorder::finish(record, RecordEntry::kRaised);
    if (clique_.job().has_raised_before(origin)) throw Error(as_earlier(error.what()));
    throw;
  } catch (...) {
    Recorder::finish(record, RecordEntry::kRaised);
    throw;
  }
}

// The other ranks wait for the collective that this rank will not make.
void Communicator::fail(const std::string& what) {
  const std::string text =
      "lockstep: " + what +
      ". This jaxlib calls its collectives in an order that this version of Lockstep does not "
      "know; `lockstep doctor` names the versions that it does.";
  clique_.job().arena().abort(text);
  throw Error(text);
}

void Communicator::run_locked(Call& call) {
  Job& job = clique_.job();
  job.check_allowed(call.origin);
  if (rounds_ != 0) fail(std::string(name_of(call.op)) + " in the middle of an all-to-all");
  const Job::InFlight running(job);
  const std::uint32_t sequence = sequence_++;
  call.entered = TscClock::now();
  call.record = Recorder::begin(ring_, call, clique_.id(), sequence, rank_);
  recorded(call.record, call.origin, [&] {
    clique_.local_group().run(clique_.member_of(rank_), sequence, call,
                              [this](std::span<const Call* const> calls, std::uint32_t number) {
                                run_collective(clique_, calls, number);
                              });
  });
  Recorder::finish(call.record, RecordEntry::kDone);
}

void Communicator::send_receive(const std::byte* from, int target, std::byte* to, int source,
                                std::size_t bytes, const Origin& origin) {
  std::lock_guard lock(mutex_);
  clique_.job().check_allowed(origin);
  const int next = rounds_ + 1;
  if (target != (rank_ + next) % size() || source != (rank_ + size() - next) % size() ||
      (rounds_ != 0 && all_to_all_.count != bytes))
    fail("a Sendrecv that is not part of an all-to-all");
  if (rounds_ == 0) {
    all_to_all_.op = Op::kAllToAll;
    all_to_all_.count = bytes;
    all_to_all_.origin = origin;
    all_to_all_.ins.assign(static_cast<std::size_t>(size()), nullptr);
    all_to_all_.outs.assign(static_cast<std::size_t>(size()), nullptr);
  }
  all_to_all_.ins[static_cast<std::size_t>(target)] = from;
  all_to_all_.outs[static_cast<std::size_t>(source)] = to;
  rounds_ = next;
  if (rounds_ < size() - 1) return;
  rounds_ = 0;
  run_locked(all_to_all_);
}

// A collective-permute of this rank is its receive, if it has one, and its sends; it ends with the
// wait for the last of them.
void Communicator::begin_permute(std::size_t bytes, const Origin& origin) {
  clique_.job().check_allowed(origin);
  if (open_requests_++ != 0) return;
  Call call;
  call.op = Op::kPermute;
  call.count = bytes;
  call.origin = origin;
  permute_origin_ = origin;
  call.entered = TscClock::now();
  permute_ = Recorder::begin(ring_, call, clique_.id(), permutes_++, rank_);
}

Request* Communicator::send(int target, const std::byte* data, std::size_t bytes,
                            const Origin& origin) {
  std::lock_guard lock(mutex_);
  begin_permute(bytes, origin);
  Recorder::add_target(permute_, target);
  return recorded(permute_, origin, [&] { return port_.send(target, data, bytes, origin); });
}

Request* Communicator::receive(int source, std::byte* data, std::size_t bytes,
                               const Origin& origin) {
  std::lock_guard lock(mutex_);
  begin_permute(bytes, origin);
  Recorder::add_source(permute_, source);
  return recorded(permute_, origin, [&] { return port_.receive(source, data, bytes, origin); });
}

void Communicator::wait(Request* request) {
  std::lock_guard lock(mutex_);
  const Job::InFlight running(clique_.job());
  --open_requests_;
  recorded(permute_, permute_origin_, [&] { port_.wait(request); });
  if (open_requests_ == 0) Recorder::finish(permute_, RecordEntry::kDone);
}

}  // namespace lockstep
