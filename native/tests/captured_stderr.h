// What a test's code writes to stderr.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/descriptor.h"
#include "hosts.h"

namespace lockstep::testing {

// What is written to stderr while it lives.
class Stderr {
 public:
  Stderr() : file_(memfd_create("stderr", MFD_CLOEXEC)), before_(dup(STDERR_FILENO)) {
    dup2(file_.get(), STDERR_FILENO);
  }
  ~Stderr() { dup2(before_.get(), STDERR_FILENO); }
  std::string text() const {
    std::string found(1 << 16, '\0');
    const ssize_t n = pread(file_.get(), found.data(), found.size(), 0);
    found.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return found;
  }
  void wait_for(const char* part) const {
    eventually([&] { return text().find(part) != std::string::npos; }, part);
  }

 private:
  Descriptor file_, before_;
};

}  // namespace lockstep::testing
