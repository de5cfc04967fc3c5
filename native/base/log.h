// Lines on stderr from a thread that must not wait.
#pragma once

#include <string_view>

namespace lockstep {

// Writes a line, and its end, to stderr. A pipe or a terminal that takes nothing now loses the
// line: the progress thread also carries the collectives of all ranks.
void log_or_drop(std::string_view line);

}  // namespace lockstep
