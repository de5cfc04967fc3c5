"""Two processes that watch over each other, so that a job ends with its launcher however that ends.

The launcher forks at once. The parent is the *guard*: it is what the user started, sees, and sends
signals to, and it does nothing but pass them on. The child is the *supervisor*: it starts the
processes of the job and does all the work. Both are subreapers (see process_tree).

- kill -9 of the guard: the supervisor sees the end of a pipe whose other end only the guard holds.
- kill -9 of the supervisor: everything that it started becomes the guard's, which kills it.
- kill -9 of both at once: the kernel kills the processes of the job (their parent-death signal);
  only what those had started themselves may survive. The next run removes the private directory.

Rejected: a watchdog beside the launcher (it is no ancestor of the job, so it cannot adopt what
escaped to a session of its own), process ids in a file (ids are used again), a control group or
a process namespace (both need rights that containers and batch jobs do not give).

The supervisor lives in a session of its own. The terminal's Ctrl-C thus reaches the guard only, and
is passed on once; whether a process gets it is the supervisor's decision.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from lockstep._errors import LaunchError, LockstepError
from lockstep._words import signal_name
from lockstep.launch.first_failure import not_started
from lockstep.system import process_tree

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_guarded(supervise: Callable[[int], int], run_dir: Path) -> int:
    """Runs ``supervise(lifeline)`` in a child and returns its status; leaves no process behind.

    ``lifeline`` is a descriptor that reads as ended once this process is gone. Signals in
    `PASSED_ON` are blocked when ``supervise`` begins.
    """
    process_tree.adopt_orphans()
    # Who starts us with a signal ignored (nohup, a shell's &) means it.
    heard = {s for s in PASSED_ON if signal.getsignal(s) != signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGCHLD})
    try:
        lifeline, held = os.pipe()
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise LaunchError(f"nothing can be started: {not_started(error)}") from error
    try:
        supervisor = os.fork()
        if supervisor == 0:
            os.close(held)
            _supervise(supervise, lifeline, run_dir)
        os.close(lifeline)
        status = _watch(supervisor, heard)
        process_tree.end_all()
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    if status < 0:
        print(
            f"lockstep: the supervising process was killed by {signal_name(-status)}; "
            "everything that it had started was ended",
            file=sys.stderr,
        )
    return status if status >= 0 else 128 - status


def _supervise(supervise: Callable[[int], int], lifeline: int, run_dir: Path) -> None:
    status = 1
    try:
        os.setsid()
        process_tree.adopt_orphans()
        status = supervise(lifeline)
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        # The guard would do both, if it still lives.
        process_tree.end_all()
        shutil.rmtree(run_dir, ignore_errors=True)
        sys.stderr.flush()
        os._exit(status)


def _watch(supervisor: int, heard: set[signal.Signals]) -> int:
    """Passes signals on until the supervisor has ended; its exit code, negative for a signal."""
    while True:
        for pid, exit_code in process_tree.bury():
            if pid == supervisor:
                return exit_code
        number = signal.sigwait(heard | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            process_tree.kill({supervisor}, number)
