// The names that MPItrampoline resolves and XLA never calls. Each function fails by name; each
// constant is a distinct value, eight bytes wide so that it reads the same as int and as handle on
// a little-endian machine.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

namespace {

[[noreturn]] void unused(const char* name) {
  // XLA reads no result of such a call that could carry an error; going on would be a guess.
  std::fprintf(stderr,
               "lockstep: jaxlib called %s, which Lockstep does not provide. This jaxlib is newer "
               "than this version of Lockstep knows: `lockstep doctor` names the versions it does; "
               "--collectives gloo works without it.\n",
               name);
  std::abort();
}

}  // namespace

#define LOCKSTEP_CONSTANT(NAME, VALUE) \
  extern "C" {                         \
  extern const std::uint64_t NAME;     \
  const std::uint64_t NAME = VALUE;    \
  }
#define LOCKSTEP_UNUSED(NAME) \
  extern "C" int NAME() { unused(#NAME); }
#include "api/mpitrampoline/surface.inc"

extern "C" {
extern const int mpiabi_version_major, mpiabi_version_minor, mpiabi_version_patch;
extern const int mpiwrapper_version_major, mpiwrapper_version_minor, mpiwrapper_version_patch;
const int mpiabi_version_major = 2, mpiabi_version_minor = 9, mpiabi_version_patch = 0;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 9, mpiwrapper_version_patch = 0;
void mpiwrapper_export_fortran_constants_() {}
}
