// The arithmetic of the reductions.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace lockstep {

// out[i] = ((in[0][j] op in[1][j]) op in[2][j]) ... for i < count and j = first + i. `out` may be
// where in[0] has its element `first`, and nothing else may overlap it. The order of the inputs is
// the order of the arithmetic: callers pass rank order, which is what makes results the same on
// every rank and in every run. Throws Error where `check_reduction` does.
void reduce(std::byte* out, std::span<const std::byte* const> in, std::size_t count, DType dtype,
            Reduction reduction, std::size_t first = 0);

// Throws Error unless values of this type can be reduced in this way.
void check_reduction(DType dtype, Reduction reduction);

}  // namespace lockstep
