// The test program: no argument runs everything, an argument one group, `--list` names the groups.
//
// It is single-threaded between tests: the forked harness needs that.
#include <execinfo.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "check.h"

namespace lockstep::testing {
namespace {

// No test may hang; the longest needs seconds, and under a sanitizer a minute or two.
constexpr unsigned kHungSeconds = 600;

struct Test {
  std::string group;
  std::string name;
  Body body;
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

std::string base_name(const char* file) {
  const std::string path = file;
  const std::size_t start = path.rfind('/') + 1;
  return path.substr(start, path.rfind('.') - start);
}

std::string running;
std::string hung_text;

void hung(int) {
  (void)!write(STDOUT_FILENO, hung_text.data(), hung_text.size());
  _exit(3);
}

// Prints where; a sanitizer has handlers of its own, which stay. The first call of `backtrace`
// allocates, so it is made before.
void crashed(int signal) {
  void* frames[64];
  const int count = backtrace(frames, 64);
  constexpr char kTitle[] = "CRASHED\n";
  (void)!write(STDOUT_FILENO, kTitle, sizeof(kTitle) - 1);
  backtrace_symbols_fd(frames, count, STDOUT_FILENO);
  raise(signal);
}

void report_crashes() {
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction wanted{}, before{};
  wanted.sa_handler = crashed;
  wanted.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
      sigaction(signal, &wanted, nullptr);
}

bool run(const Test& test) {
  running = test.group + "." + test.name;
  hung_text = "HUNG " + running + "\n";
  alarm(kHungSeconds);
  try {
    test.body();
    std::printf("ok %s\n", running.c_str());
    return true;
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n  %s\n", running.c_str(), error.what());
    return false;
  }
}

int main_of(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--list") == 0) {
    std::set<std::string> groups;
    for (const Test& test : tests()) groups.insert(test.group);
    for (const std::string& group : groups) std::printf("%s\n", group.c_str());
    return 0;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::signal(SIGALRM, hung);
  report_crashes();
  int done = 0, failed = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && test.group != argv[1]) continue;
    if (argc > 2 && test.name != argv[2]) continue;
    ++done;
    if (!run(test)) ++failed;
  }
  std::printf("%d tests, %d failed\n", done, failed);
  return failed != 0 || done == 0;
}

}  // namespace

bool add_test(const char* file, const char* name, Body body) {
  tests().push_back({base_name(file), name, body});
  return true;
}

void fail(const char* file, int line, const std::string& text) {
  throw CheckFailed(base_name(file) + ".cc:" + std::to_string(line) + ": " + text);
}

void check_contains(const char* file, int line, const std::string& text,
                    std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      fail(file, line, "\"" + part + "\" is not in \"" + text + "\"");
}

}  // namespace lockstep::testing

int main(int argc, char** argv) { return lockstep::testing::main_of(argc, argv); }
