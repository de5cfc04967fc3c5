"""Runs a command as long as another process lives.

    python -m lockstep.notebook.controller_guard PID -- COMMAND

The controller of a notebook's job has a session of its own, so that Ctrl-C does not reach it, and
would outlive a notebook's kernel that is killed. A parent-death signal does not serve here: it
comes when the *thread* ends that started the process, and ipyparallel starts processes on threads
of its own.

VS Code interrupts a kernel by SIGINT to all processes below it, and the controller would end. So
the command starts with SIGINT blocked, since the controller sets a handler.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep.processes import run_dir
from lockstep.system import process_tree, signal_pipe

GRACE = 3.0
"""Seconds for the command to end by itself, with what it has started, once PID has ended."""


def command(words: Sequence[str]) -> list[str]:
    """The command line that runs ``words`` as long as this process lives."""
    own = [sys.executable, "-P", "-m", "lockstep.notebook.controller_guard", str(os.getpid()), "--"]
    return [*own, *words]


def main(pid: int, words: Sequence[str]) -> int:
    """Runs ``words`` until it ends, or process ``pid`` does; the exit status as of a shell."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_tree.adopt_orphans()
    wake, _ = signal_pipe.open_for((signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP))
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return 1
    child = subprocess.Popen(words, preexec_fn=process_tree.end_with_parent)
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(held, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == held:
                child.terminate()
                poll.unregister(held)
                status = _end(child)
                _remove_folder()
                return status
            for number in os.read(wake, 512):
                if number != signal.SIGCHLD:
                    process_tree.kill({child.pid}, number)
        for ended, code in process_tree.reap():
            if ended == child.pid:
                child.returncode = code
                process_tree.end_all()
                return code if code >= 0 else 128 - code


def _remove_folder() -> None:
    """Removes the notebook's private directory: its kernel cannot any more."""
    folder = Path(os.environ.get("IPP_PROFILE_DIR", ""))
    if folder.name.startswith(run_dir.PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _end(child: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and process_tree.descendants():
        process_tree.reap()
        time.sleep(0.02)
    child.returncode = 1
    process_tree.end_all()
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[3:]))
