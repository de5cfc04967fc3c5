#include "system.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "check.h"

namespace lockstep::testing {

std::vector<std::string> ucx_libraries() {
  const char* name = std::getenv("LOCKSTEP_TEST_UCX");
  return name == nullptr ? std::vector<std::string>() : std::vector<std::string>{name};
}

std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  CHECK_EQUAL(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(100);
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = error.what();
    }
    (void)!write(write_end.get(), text.data(), text.size());
    _exit(0);
  }
  write_end = Descriptor();
  std::string text;
  char part[512];
  for (ssize_t n; (n = read(read_end.get(), part, sizeof(part))) > 0;)
    text.append(part, static_cast<std::size_t>(n));
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  return text;
}

void run_in_child(const std::function<void()>& body) {
  const std::string error = in_child([&] {
    body();
    return std::string();
  });
  CHECK_EQUAL(error, "");
}

void stop_for(std::chrono::seconds time) {
  const pid_t stopped = getpid();
  const pid_t child = fork();
  if (child == 0) {
    std::this_thread::sleep_for(time);
    kill(stopped, SIGCONT);
    _exit(0);
  }
  kill(stopped, SIGSTOP);
  waitpid(child, nullptr, 0);
}

Listener listen_anywhere() {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  auto* any = reinterpret_cast<sockaddr*>(&name);
  if (bind(fd.get(), any, size) != 0 || listen(fd.get(), 64) != 0 ||
      getsockname(fd.get(), any, &size) != 0)
    throw CheckFailed("no port to listen on");
  return {std::move(fd), "127.0.0.1:" + std::to_string(ntohs(name.sin_port))};
}

}  // namespace lockstep::testing
