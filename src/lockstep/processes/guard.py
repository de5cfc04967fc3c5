"""Two processes that watch each other, so that a job never outlives its launcher.

The launcher forks at once. The parent is the *guard*: the process that the user has started and
sends signals to. It only forwards signals. The child is the *supervisor*: it starts the processes
of the job and does all the work. Both are subreapers (see process_tree).

- kill -9 of the guard: the supervisor sees the end of a pipe whose other end only the guard holds.
- kill -9 of the supervisor: its descendants become children of the guard, which kills them.
- kill -9 of both at once: the kernel kills the processes of the job (their parent-death signal);
  only processes that those have started may survive. The next run removes the private directory.

Rejected: a watchdog beside the launcher (it is no ancestor of the job, so it cannot adopt processes
that moved to another session), process ids in a file (ids are reused), a control group or a process
namespace (both need rights that containers and batch jobs do not give).

The supervisor has a session of its own. So the terminal's Ctrl-C reaches the guard only, which
forwards it once; the supervisor decides which processes get it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from lockstep._errors import LaunchError, LockstepError
from lockstep._stderr import complain
from lockstep._words import signal_name
from lockstep.processes.first_failure import not_started
from lockstep.system import channel, process_tree

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


OF_A_JOB = "the launcher's supervising process was", "the job"
OF_A_HOST = "the agent of this host was", "this host"


def run_guarded(
    supervise: Callable[[int], int],
    run_dir: Path,
    caller: int | None = None,
    words: tuple[str, str] = OF_A_JOB,
) -> int:
    """Runs ``supervise(lifeline)`` in a child and returns its status; leaves no process behind.

    ``lifeline`` is a descriptor that reads as ended once this process is gone, or that of the
    ``caller``: a program that has started this one for its own use. Signals in `PASSED_ON` are
    blocked when ``supervise`` begins. At the end ``run_dir`` is removed, but left to a caller that
    lives: it reads there how the processes have ended. ``words``: what ``supervise`` is, and whose
    processes end with it.
    """
    process_tree.adopt_orphans()
    # A signal that is ignored at the start (nohup, a shell's &) stays ignored.
    handled = {s for s in PASSED_ON if signal.getsignal(s) != signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled | {signal.SIGCHLD})
    try:
        lifeline, held = os.pipe()
    except OSError as error:
        _remove(run_dir, caller)
        raise LaunchError(f"nothing can be started: {not_started(error)}") from error
    try:
        supervisor = os.fork()
        if supervisor == 0:
            os.close(held)
            if caller is not None:
                # The pipe of the guard would do, but the supervisor watches the caller with it.
                process_tree.end_with_parent()
            _supervise(supervise, lifeline, run_dir, caller)
        os.close(lifeline)
        status = _watch(supervisor, handled)
        process_tree.end_all()
    finally:
        _remove(run_dir, caller)
    if status < 0:
        complain(
            f"{words[0]} killed by {signal_name(-status)}; all processes of {words[1]} were killed"
        )
    return status if status >= 0 else 128 - status


def _supervise(
    supervise: Callable[[int], int], lifeline: int, run_dir: Path, caller: int | None
) -> None:
    status = 1
    try:
        os.setsid()
        process_tree.adopt_orphans()
        status = supervise(lifeline if caller is None else caller)
    except LockstepError as error:
        complain(str(error))
    except BaseException:
        traceback.print_exc()
    finally:
        # The guard does both too, but it may have been killed.
        process_tree.end_all()
        _remove(run_dir, caller)
        sys.stderr.flush()
        os._exit(status)


def _remove(run_dir: Path, caller: int | None) -> None:
    if caller is None or channel.is_ready(caller, select.POLLIN, 0.0):
        shutil.rmtree(run_dir, ignore_errors=True)


def _watch(supervisor: int, handled: set[signal.Signals]) -> int:
    """Forwards signals until the supervisor has ended; its exit code, negative for a signal."""
    while True:
        for pid, exit_code in process_tree.reap():
            if pid == supervisor:
                return exit_code
        number = signal.sigwait(handled | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            process_tree.kill({supervisor}, number)
