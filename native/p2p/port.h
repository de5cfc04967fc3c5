// A rank's end of the mailbox: the requests that the rank has started and not waited for.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "p2p/request.h"

namespace lockstep {

class Clique;
class Mailbox;

// Used by one thread at a time.
class Port {
 public:
  Port(Clique& clique, int rank);
  ~Port() { forget_all(); }

  Request* send(int target, const std::byte* data, std::size_t bytes, const Origin& origin);
  Request* receive(int source, std::byte* data, std::size_t bytes, const Origin& origin);
  // Ends the request and forgets it. Throws Error at the deadline or when the job has failed.
  void wait(Request* request);

 private:
  Request* add(Request::Kind kind, int peer, const std::byte* from, std::byte* to,
               std::size_t bytes, const Origin& origin);
  // Moves what can be moved without waiting, of all requests; false when that was nothing.
  bool progress();
  // Runs `step`; when it throws, the job is aborted and no request of this rank stays behind.
  template <typename Step>
  void guarded(Step step);
  [[noreturn]] void give_up(const Request& request);
  void forget_all();
  // Whether an older request of the same pair has to be served first.
  bool behind_another(std::size_t index) const;

  Clique& clique_;
  Mailbox& mailbox_;
  int rank_;
  std::vector<std::unique_ptr<Request>> pending_;
};

}  // namespace lockstep
