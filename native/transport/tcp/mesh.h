// Which processes of other hosts a process connects to at the start: with P processes on each of H
// hosts H - 1, and not P (H - 1). The others follow before the first message between the two, by
// either of them. The other one answers with its own connection, although its program may not be
// that far yet: a process that waits for another one always has a connection from it, and learns of
// its end.
#pragma once

#include <vector>

namespace lockstep {

// `hosts`: a number of the host of each process. For each process, whether it and `process` wait
// with their connections; the answer is the same at both ends. The process with index i on its host
// connects at the start to the one with index i on each other host, modulo their number there. So a
// process that dies, ends or aborts is noticed on every host, whose processes tell each other.
std::vector<bool> deferred_connections(const std::vector<int>& hosts, int process);

}  // namespace lockstep
