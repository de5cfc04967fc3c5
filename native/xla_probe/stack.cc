#include "xla_probe/stack.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace lockstep {
namespace {

struct Walk {
  const std::uintptr_t address;
  Place inside = {};  // the innermost frames that have been visited
  Place found = {};
};

// Called for each frame, from the innermost on.
_Unwind_Reason_Code visit(_Unwind_Context* frame, void* argument) {
  Walk& walk = *static_cast<Walk*>(argument);
  const std::uintptr_t lowest = _Unwind_GetCFA(frame);  // the stack pointer during its call
  if (lowest > walk.address) {
    walk.found = walk.inside;
    return _URC_END_OF_STACK;
  }
  walk.inside = {_Unwind_GetIP(frame), walk.address - lowest};
  return _URC_NO_REASON;
}

// Serves sandboxes without process_vm_readv: write() fails with EFAULT where there is no memory.
bool read_through_pipe(std::uintptr_t address, void* to, std::size_t bytes) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t part = std::min<std::size_t>(bytes - done, PIPE_BUF);
    const ssize_t sent = write(ends[1], reinterpret_cast<const char*>(address) + done, part);
    if (sent <= 0 || read(ends[0], static_cast<char*>(to) + done, sent) != sent) break;
    done += sent;
  }
  close(ends[0]);
  close(ends[1]);
  return done == bytes;
}

}  // namespace

bool read_memory(std::uintptr_t address, void* to, std::size_t bytes) {
  const iovec local{to, bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  const ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  if (got < 0 && (errno == EPERM || errno == ENOSYS)) return read_through_pipe(address, to, bytes);
  return got == static_cast<ssize_t>(bytes);
}

std::uintptr_t end_of_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* base = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &base, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<std::uintptr_t>(base) + size;
}

Place place_of(std::uintptr_t address) {
  Walk walk{address};
  _Unwind_Backtrace(visit, &walk);
  return walk.found;
}

// In front of a virtual table stands a pointer to the type's description, whose second word points
// to the name.
bool is_table_of(std::uintptr_t table, const char* mangled_name) {
  constexpr std::size_t kMaxLength = 64;
  std::uintptr_t type = 0, name = 0;
  char text[kMaxLength] = {};
  const std::size_t size = std::strlen(mangled_name) + 1;
  return size <= kMaxLength && table % 8 == 0 && read_memory(table - 8, &type, 8) &&
         read_memory(type + 8, &name, 8) && read_memory(name, text, size) &&
         std::memcmp(text, mangled_name, size) == 0;
}

}  // namespace lockstep
