// Looking at the frames of the functions that are calling us.
//
// Some of what XLA knows about a collective does not cross the MPI interface but lies in a local
// variable of a function further up. Such an object is found by its class: an object with virtual
// functions starts with a pointer by which its type can be read, in the way that every C++ compiler
// for Linux writes it (Itanium C++ ABI, 2.5.2 and 2.9.5).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// A word of the stack may look like a pointer and not be one: the kernel copies, and says no.
bool read_memory(std::uintptr_t address, void* to, std::size_t bytes);

// The end of the calling thread's stack; 0 when the system does not tell.
std::uintptr_t end_of_stack();

// The place of a local variable, in the frame that a function has during one of its calls. It is
// the same whenever that call is executed.
struct Place {
  std::uintptr_t call = 0;  // its return address; 0: not known
  std::uintptr_t offset = 0;

  friend auto operator<=>(const Place&, const Place&) = default;
};

// The place of an object in the calling thread's frames.
Place place_of(std::uintptr_t address);

// Whether `table` is the virtual table of the class with this mangled name.
bool is_table_of(std::uintptr_t table, const char* mangled_name);

}  // namespace lockstep
