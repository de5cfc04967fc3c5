#include "transport/ucx/library.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstdlib>

#include "base/error.h"

namespace lockstep::ucp {
namespace {

// Sets, for as long as it lives, what UCX reads of the environment when it is loaded: no handlers
// of its own for signals, since a crash belongs to Python's faulthandler and JAX's handlers; no
// patches in the C library's mmap and its relatives, which other threads are calling; no warnings
// in the program's output. What the user has set stays as it is. UCX reads these in constructors,
// so it has no other way to set them.
class LoadEnvironment {
 public:
  LoadEnvironment() {
    for (const auto& [name, value] : kValues)
      if (std::getenv(name) == nullptr && setenv(name, value, 0) == 0) set_.push_back(name);
    for (std::size_t i = 0; i < handlers_.size(); ++i)
      sigaction(static_cast<int>(i) + 1, nullptr, &handlers_[i]);
  }
  // Restores the handlers: UCX sets one, to start a debugger, whatever the environment says.
  ~LoadEnvironment() {
    for (std::size_t i = 0; i < handlers_.size(); ++i)
      sigaction(static_cast<int>(i) + 1, &handlers_[i], nullptr);
    for (const char* name : set_) unsetenv(name);
  }
  LoadEnvironment(const LoadEnvironment&) = delete;
  LoadEnvironment& operator=(const LoadEnvironment&) = delete;

 private:
  struct Value {
    const char *name, *value;
  };
  static constexpr Value kValues[] = {{"UCX_HANDLE_ERRORS", "none"},
                                      {"UCX_ERROR_SIGNALS", ""},
                                      {"UCX_MEM_EVENTS", "no"},
                                      {"UCX_LOG_FILE", "stderr"}};
  std::vector<const char*> set_;
  std::array<struct sigaction, 31> handlers_{};  // of the standard signals
};

constexpr const char* kAdvice =
    " Install UCX 1.12 or newer on every host (Debian and Ubuntu: apt install libucx0; or pip "
    "install libucx-cu12), set LOCKSTEP_UCX_LIBRARY to the path of a libucp.so.0, or use "
    "--transport tcp.";

void* open(const std::vector<std::string>& candidates) {
  const LoadEnvironment environment;
  std::string tried;
  for (const std::string& name : candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    tried += std::string(tried.empty() ? " Tried: " : "; ") + dlerror();
  }
  throw Error("lockstep: --transport ucx needs UCX, and its library libucp was not found." + tried +
              "." + kAdvice);
}

// Major, minor and release.
std::array<unsigned, 3> numbers_of(void (*get_version)(unsigned*, unsigned*, unsigned*)) {
  std::array<unsigned, 3> numbers{};
  get_version(&numbers[0], &numbers[1], &numbers[2]);
  return numbers;
}

std::string version_of(const std::array<unsigned, 3>& numbers) {
  const auto [major, minor, release] = numbers;
  const std::string text =
      std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  if (major != kMajor || minor < kMinor)
    throw Error("lockstep: --transport ucx needs UCX 1.12 or newer, of version 1, and found " +
                text + "." + kAdvice);
  return text;
}

}  // namespace

Library::Library(const std::vector<std::string>& candidates)
    : handle_(open(candidates)),
      numbers_(numbers_of(get_version)),
      version_(version_of(numbers_)) {}

// libucp's symbols and those of the libraries that it needs, such as libucs.
void* Library::symbol(const char* name) const {
  if (void* found = dlsym(handle_, name)) return found;
  throw Error(std::string("lockstep: the UCX that was found has no ") + name +
              ", so it is older than 1.12." + kAdvice);
}

void Library::check(Status status, const char* what) const {
  if (status == kOk) return;
  throw Error(std::string("lockstep: UCX ") + version_ + " could not " + what + ": " +
              text_of(status) +
              ". UCX_LOG_LEVEL=info shows more; --transport tcp does without it.");
}

}  // namespace lockstep::ucp
