// The arithmetic of the reductions.
#pragma once

#include <cstddef>
#include <span>

#include "core/types.h"

namespace lockstep {

// out[i] = ((in[0][i] op in[1][i]) op in[2][i]) ... for i < count. `out` may be in[0], and nothing
// else may overlap it. The order of the inputs is the order of the arithmetic: callers pass
// rank order, which is what makes results the same on every rank and in every run.
void reduce(std::byte* out, std::span<const std::byte* const> in, std::size_t count, DType dtype,
            Reduction reduction);

}  // namespace lockstep
