"""The agent: the parent process of the program under ``lockstep worker``.

It does not run JAX, so it works when the program is dead, stopped or stuck, and as the parent it
receives the program's exit status. It writes this status for the other processes of its host. In a
job of several hosts, one agent of each host answers requests of the others
(`lockstep.watchdog.agent_network`). The cluster's launcher sees the agent as the program: the agent
forwards signals, and ends with the program's status. After a failure it first gives the other
processes time to end.

The program has a process group of its own, so that a signal to the launcher's group reaches it
once, by way of the agent. If the agent is killed, its guard decides whether the program goes on
(`program_guard`). Slurm with proctrack/cgroup signals its own children only, so the agent has to
forward signals; with proctrack/linuxproc all descendants get the signal, and the program gets it
twice, which cannot be detected. If the input is a terminal, the program stays in the agent's group,
because otherwise it could not read; then the terminal's signals reach both and are not forwarded,
and the program ends with the agent.

Launchers announce the end with SIGTERM: a time limit, a preemption, scancel. The program then ends
as under ``lockstep run`` (`lockstep.processes.stop_plan`).

Rejected: a child of the program instead of its parent, which could not forward signals (and would
learn how its parent ended only on kernels from 6.15 on), and one agent for each host (launchers
start no such process, and it would be the parent of no program).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lockstep import _run_files
from lockstep._errors import RecordError
from lockstep.flight_recorder import format, run_records
from lockstep.processes import failed_runs, program_guard
from lockstep.processes.console import complain
from lockstep.processes.host_dir import HostDir
from lockstep.processes.program import (
    GRACE,
    GRACE_AFTER_SIGTERM,
    STOPS,
    Program,
    block_signals,
    has_terminal,
    start,
)
from lockstep.system import fd_limit, process_tree
from lockstep.system.oom import OomKills

if TYPE_CHECKING:
    from lockstep.hosts.supervisor_line import SupervisorLine
    from lockstep.watchdog.agent_network import AgentNetwork

_TURN_SECONDS = 0.02
_LAST_SECONDS = 0.5
_REPORT_SECONDS = 5.0
"""How long the supervisor may take to report, when the programs have ended."""


def run(
    arguments: Sequence[str],
    environ_with: Callable[[int], Mapping[str, str]],
    host_dir: HostDir,
    process: int,
    log_dir: Path | None,
    grace: float | None,
    line: SupervisorLine | None = None,
) -> bool:
    """Starts the program, and ends with its status, at most ``grace`` seconds later.

    Returns where ``line`` says that the job starts again; else it ends this process.

    ``grace`` is the value of ``--grace``. Without it the program gets 25 s after SIGTERM, since it
    may have to save something large, and the other processes get 5 s after a failure.

    ``environ_with`` makes the program's environment from its descriptor of the socket to the agent.
    Raises `LaunchError` when the program cannot be started.
    """
    handled, blocked = block_signals()
    supervisor: set[int] = set()
    if line is not None:
        process_tree.adopt_orphans()
        supervisor = process_tree.descendants()  # of process 0 only; it outlives the attempts
    ooms = OomKills()
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    shares_group = has_terminal()
    guard = None if shares_group else program_guard.start(host_dir.held, line is not None)
    pid = start(arguments, lambda: environ_with(theirs.fileno()), shares_group, blocked, guard)
    theirs.detach()
    kept_open = {ours.fileno(), host_dir.held, line.fd if line else -1}
    if guard is not None:
        guard.watch(pid)
        kept_open.add(guard.lifeline)
    fd_limit.close_all_but(kept_open)
    # A late import, so that the program starts earlier.
    from lockstep.watchdog.agent_network import AgentNetwork

    network = AgentNetwork(ours, host_dir.path)
    after_failure = GRACE if grace is None else grace
    program = Program(pid, shares_group, host_dir.path, line, after_failure)
    after_sigterm = GRACE_AFTER_SIGTERM if grace is None else grace
    exit_code = program.wait(handled, after_sigterm)
    if guard is not None:
        guard.dismiss()
    ending = _run_files.Exit.of(exit_code, pid, _reason(program, exit_code, ooms))
    if line and program.lease_is_over:
        complain(f"process {process} was killed: {line.over(runs=True)}")
    elif program.was_killed and (line is None or program.was_stopped or line.is_lost):
        _tell_of_kill(process, program, after_sigterm, after_failure)
    if line is None:
        _publish_exit(host_dir, ending, network, handled, after_failure)
    else:
        # The supervisor ends with this process, and reports when the other programs have ended.
        stays = after_sigterm + _REPORT_SECONDS if process == 0 else 0.0
        again = _ends_attempt(host_dir, ending, network, handled, line, program, stays)
        # The program may have left some running, which hold the launcher's pipes.
        process_tree.end_all(supervisor)
        if again:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            return True
    leave(host_dir, log_dir, exit_code)
    _end_as(exit_code)


def _tell_of_kill(
    process: int, program: Program, after_sigterm: float, after_failure: float
) -> None:
    why = f"it had not ended {after_sigterm:g} s after SIGTERM (--grace)"
    if not program.was_stopped:
        lost = "the agent of process 0 has ended"
        why = f"{lost}, and it had not ended {after_failure:g} s later (--grace)"
    complain(f"process {process} was killed: {why}")


def _ends_attempt(
    host_dir: HostDir,
    ending: _run_files.Exit,
    network: AgentNetwork,
    handled: set[signal.Signals],
    line: SupervisorLine,
    program: Program,
    stays: float,
) -> bool:
    """Reports to the supervisor how the program ended; returns whether the job starts again.

    ``stays``: seconds that an agent which was asked to end waits for the end of the others.
    """
    with contextlib.suppress(OSError):  # a full disk
        ending.write(host_dir.folder)
    record = _run_files.ErrorRecord.read(host_dir.folder)
    line.ended(ending, record, program.asked_to_end, program.was_killed)
    # An agent that was asked to end leaves; another may come in its place.
    seconds = stays if program.asked_to_end else float("inf")
    starts_again = _starts_again(line, handled, seconds) and not program.asked_to_end
    network.leave()
    return starts_again


def _starts_again(line: SupervisorLine, handled: set[signal.Signals], seconds: float) -> bool:
    """Waits until all programs have ended, at most ``seconds``; a signal that stops the job ends
    the wait."""
    end = time.monotonic() + seconds
    while (decision := line.decision(_TURN_SECONDS)) is None and time.monotonic() < end:
        received = signal.sigtimedwait(handled, _TURN_SECONDS)
        if received and received.si_signo in STOPS:
            return False
        if line.left(runs=False) <= 0:
            complain(f"the agent has ended: {line.over(runs=False)}")
            return False
    return bool(decision)


def _publish_exit(
    host_dir: HostDir,
    ending: _run_files.Exit,
    network: AgentNetwork,
    handled: set[signal.Signals],
    grace: float,
) -> None:
    """Publishes how the program ended; if others fail because of it, gives them time to end."""
    # With exit code 0 a launcher does not end the job, but other hosts may not know of the exit.
    unpublished = network.knows_others and not _has_left(host_dir.folder)
    fails = ending.exit_code != 0 or unpublished
    stays = host_dir.folder / _run_files.STAYS
    with contextlib.suppress(OSError):
        if fails and network.knows_others:
            stays.touch()
    with contextlib.suppress(OSError):  # a full disk
        ending.write(host_dir.folder)
    if fails:
        _let_others_end(host_dir, network, handled, grace)
    with contextlib.suppress(OSError):
        stays.unlink()
    network.leave()


def _reason(program: Program, exit_code: int, ooms: OomKills) -> str | None:
    if program.was_stopped and exit_code != 0:
        return _run_files.STOPPED
    return _run_files.OUT_OF_MEMORY if exit_code == -signal.SIGKILL and ooms.new() else None


def _has_left(folder: Path) -> bool:
    """Whether the program has published its end through the engine, or never started it."""
    try:
        return (
            run_records.read_record(_run_files.recorder_of(folder)).state
            == format.ProcessState.ENDED
        )
    except (OSError, RecordError):
        return True


def _let_others_end(
    host_dir: HostDir, network: AgentNetwork, handled: set[signal.Signals], grace: float
) -> None:
    """Waits until the other processes have ended, at most ``grace`` seconds.

    Many launchers kill a job as soon as one of its processes has ended with a failure. Before that
    the others should raise their errors, which need this agent's information, save their state, and
    end with their own status.
    """
    end = time.monotonic() + grace
    while (left := end - time.monotonic()) > 0:
        network.meet_others()
        if network.others_have_ended() and _all_ended(host_dir):
            return
        received = signal.sigtimedwait(handled, min(_TURN_SECONDS, left))
        if received and received.si_signo in STOPS:
            return


def _all_ended(host_dir: HostDir) -> bool:
    """Whether the other programs have ended: those of this host, and the remote ones known here."""
    others = set(host_dir.path.glob("attempt_*/process_*")) - {host_dir.folder}
    ended = all((folder / _run_files.EXIT).exists() for folder in others)
    return ended and not any((folder / _run_files.STAYS).exists() for folder in others)


def leave(host_dir: HostDir, log_dir: Path | None, exit_code: int) -> None:
    """Gives up the host's directory; the last agent keeps the records and removes it."""
    if not host_dir.is_last():
        # The launcher may kill the job when it sees a failure, so give the last agent time first.
        end = time.monotonic() + _LAST_SECONDS
        while exit_code != 0 and host_dir.path.exists() and time.monotonic() < end:
            time.sleep(_TURN_SECONDS)
        return
    # Earlier attempts have failed, and are kept only where the last one has too.
    last = host_dir.folder.parent.glob("process_*")
    endings = [_run_files.Exit.read(path) for path in last]
    if any(ending is None or ending.exit_code != 0 for ending in endings):
        if words := failed_runs.kept(host_dir.path, log_dir):
            where = "" if log_dir else f" (on {platform.node()}, for the processes of that host)"
            with contextlib.suppress(OSError):
                print(f"lockstep: {words}{where}", file=sys.stderr, flush=True)
    shutil.rmtree(host_dir.path, ignore_errors=True)


def _end_as(exit_code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if exit_code < 0:
        # The program has left its core file, if one is wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to set
            signal.signal(-exit_code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.kill(os.getpid(), -exit_code)
        os._exit(128 - exit_code)
    os._exit(exit_code)
