// One error type: its text is what the user reads, so it is a whole sentence that
// says what happened, on which process, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Members of one clique are in different collectives.
class Divergence : public Error {
 public:
  using Error::Error;
};

// Advice where a process waits for another one whose program has ended.
inline constexpr const char* kEndsEarlyHint =
    "Look for a loop that is shorter there, or an exit that only one process takes.";

// A wait has lasted until its deadline.
class Late : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
