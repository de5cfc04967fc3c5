#include "transport/tcp/openssl.h"

#include <dlfcn.h>

#include "base/error.h"

namespace lockstep {
namespace openssl {

Library::Library(const std::string& name)
    : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_) return;
  throw Error(std::string("lockstep: OpenSSL could not be opened: ") + dlerror() +
              ". Encrypted connections need OpenSSL 1.1.1 or newer on every host: install it "
              "(Debian and Ubuntu: apt install openssl), or give the path of its libssl.");
}

void* Library::symbol(const char* name) const {
  if (void* found = dlsym(handle_, name)) return found;
  throw Error("lockstep: " + name_ + " has no " + name +
              ", so it is not OpenSSL 1.1.1 or newer. Encrypted connections need that: give the "
              "path of its libssl.");
}

// The library is in bits 23 to 30 of an error in OpenSSL 3 and in bits 24 to 31 in 1.1.1.
bool is(unsigned long error, unsigned long reason) {
  return (error & 0xfff) == reason && (error >> 23 == kLibrarySsl || error >> 24 == kLibrarySsl);
}

}  // namespace openssl

unsigned long OpenSsl::take_error() const {
  const unsigned long first = next_error();
  clear_errors();
  return first;
}

std::string OpenSsl::text_of(unsigned long error) const {
  const char* text = reason(error);
  return text ? text : "error " + std::to_string(error) + " of OpenSSL";
}

}  // namespace lockstep
