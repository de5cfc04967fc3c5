// What the libraries have in common that stand where MPItrampoline expects an MPI: the values of
// its constants, which are ours to choose, and its handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/error.h"

#define LOCKSTEP_CONSTANT(NAME, VALUE) [[maybe_unused]] static constexpr std::uint64_t NAME = VALUE;
#define LOCKSTEP_UNUSED(NAME)
#include "api/mpitrampoline/surface.inc"

// Handles are one word wide in MPItrampoline's interface.
using Handle = std::uintptr_t;

// What a handle stands for among those that are known; throws Error with this text for another one.
template <typename Value, std::size_t N>
Value value_of(Handle handle, const std::pair<Handle, Value> (&known)[N], const char* unknown) {
  for (const auto& [each, value] : known)
    if (each == handle) return value;
  throw lockstep::Error(unknown);
}

// For so many characters of a text XLA has room, and for a zero.
constexpr std::size_t kErrorText = 1023;
inline void write_text(std::string_view from, char* text, int* length) {
  *length = static_cast<int>(from.copy(text, kErrorText));
  text[*length] = '\0';
}
