// The virtual tables of XLA's classes that the engine looks for in frames, found once.
//
// jaxlib exports neither tables nor type descriptions, but each class with virtual functions has
// both, and the type's name, in the way of every C++ compiler for Linux (Itanium C++ ABI, 2.5.2 and
// 2.9.5): the table has a pointer to the description, and that one to the name. So the name is
// searched in the file of the library, then the words of its mapped data that point to it, and to
// those. With the table's address an object is told by comparing one word.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct VirtualTables {
  // What an object's first word is; 0 where it was not found, or more than one was.
  std::uintptr_t clique_key = 0;  // xla::cpu::CpuCliqueKey
  std::uintptr_t executor = 0;    // xla::cpu::CpuCollectives::Executor
};

inline constexpr char kCliqueKeyType[] = "N3xla3cpu12CpuCliqueKeyE";
inline constexpr char kExecutorType[] = "N3xla3cpu14CpuCollectives8ExecutorE";

// Searches the loaded libraries that have this in their path; the program itself is
// "/proc/self/exe". Keeps what it finds for `virtual_tables`, beside what was found before.
void find_virtual_tables(const std::string& part_of_path);

VirtualTables virtual_tables();
void set_virtual_tables(const VirtualTables& tables);

}  // namespace lockstep
