#include "base/log.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/descriptor.h"

namespace lockstep {

void log_or_drop(std::string_view line) {
  // Up to PIPE_BUF bytes go into a pipe whole, or not at all.
  char text[PIPE_BUF];
  const std::size_t size = std::min(line.size(), sizeof(text) - 1);
  std::memcpy(text, line.data(), size);
  text[size] = '\n';
  struct stat kind{};
  if (fstat(STDERR_FILENO, &kind) != 0) return;
  if (S_ISREG(kind.st_mode)) {  // a file takes what comes
    (void)!write(STDERR_FILENO, text, size + 1);
  } else if (S_ISSOCK(kind.st_mode)) {
    send(STDERR_FILENO, text, size + 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  } else {
    // O_NONBLOCK belongs to what is open and not to the number, and others have opened it too: so
    // it is opened once more. Without the right to, only a writer at the same moment can block.
    const NoBrokenPipe quiet;
    const Descriptor own(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    pollfd asked{STDERR_FILENO, POLLOUT, 0};
    if (own.get() >= 0)
      (void)!write(own.get(), text, size + 1);
    else if (poll(&asked, 1, 0) == 1 && (asked.revents & POLLOUT) != 0)
      (void)!write(STDERR_FILENO, text, size + 1);
  }
}

}  // namespace lockstep
