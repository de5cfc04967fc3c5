// Which processes of other hosts a process connects to at the start: on H hosts, one process of
// each of log2 H of them. The others follow before the first message between the two. The process
// that needs it first connects, and the other one answers with its own connection, although its
// program may not be that far yet: a process that waits for another one always has a connection
// from it, and learns of its end.
#pragma once

#include <vector>

namespace lockstep {

// `hosts`: a number of the host of each member; the last `num_agents` of them are agents. For each
// member, whether it and `member` wait with their connections; the answer is the same at both ends.
//
// The hosts are the corners of a hypercube: those whose places differ in one bit are neighbors. So
// recursive doubling needs no further connections where the number of hosts is a power of two. The
// process with index i on its host connects at the start to the one with index i on each
// neighboring host, modulo their number there, and to the agents of the neighboring hosts. So a
// process that dies, ends or aborts is noticed on the neighboring hosts, whose processes tell each
// other, and they pass an abort on to theirs.
std::vector<bool> deferred_connections(const std::vector<int>& hosts, int num_agents, int member);

}  // namespace lockstep
