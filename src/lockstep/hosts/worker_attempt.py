"""One attempt of a job under ``lockstep worker``: the program, and what its agent does at its end.

The agent writes the program's exit status for the other processes of its host. In a job of several
hosts, one agent of each host answers requests of the others (`lockstep.watchdog.agent_network`).
After a failure the agent first gives the other processes time to end.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from lockstep._config import Config
from lockstep._errors import RecordError
from lockstep._stderr import complain
from lockstep.flight_recorder import format, run_records
from lockstep.hosts import host_network, lease
from lockstep.hosts.worker_agent import LOST, WorkerAgent
from lockstep.processes import failed_runs
from lockstep.processes.host_dir import HostDir
from lockstep.processes.program import Program, block_signals
from lockstep.system import fd_limit, process_tree
from lockstep.system.oom import OomKills

if TYPE_CHECKING:
    from lockstep.watchdog.agent_network import AgentNetwork

_TURN_SECONDS = 0.02
_LAST_SECONDS = 0.5
_REPORT_SECONDS = 5.0
"""How long the supervisor may take to report, when the programs have ended."""


def run(
    agent: WorkerAgent,
    arguments: Sequence[str],
    environ_of: Callable[[Config], Mapping[str, str]],
    config: Config,
    host_dir: HostDir,
    log_dir: Path | None,
) -> None:
    """Starts the program, and ends with its status, at most ``--grace`` seconds later.

    Returns where the supervisor says that the job starts again; else it ends this process.

    ``environ_of`` makes the program's environment from its settings. Raises `LockstepError` when
    the program cannot be started.
    """
    handled, blocked = block_signals()
    agent.listen(handled)
    restarts = agent.channel is not None
    spared: set[int] = set()
    if restarts:
        process_tree.adopt_orphans()
        spared = process_tree.descendants()  # the supervisor, which outlives the attempts
    ooms = OomKills()
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    environ = environ_of(dataclasses.replace(config, agent=theirs.fileno()))
    if restarts:
        host_network.start(ours, host_dir.path, config)
    program = Program(arguments, environ, blocked, host_dir.path, host_dir.held, restarts)
    theirs.close()
    fd_limit.close_all_but({ours.fileno(), host_dir.held, program.lifeline, *agent.fds})
    network = None if restarts else _network(ours, host_dir.path)
    exit_code = agent.wait_for_end(program)
    ending = _run_files.Exit.of(exit_code, program.pid, _reason(program, exit_code, ooms))
    _report_kill(config.process_id or 0, agent, program)
    if network:
        _publish_exit(host_dir, ending, network, agent)
    else:
        starts_again = _ends_attempt(host_dir, ending, agent, program, config.process_id == 0)
        # The program may have left some running, which hold the launcher's pipes.
        process_tree.end_all(spared)
        if starts_again:
            (host_dir.path / _run_files.STOPPING).unlink(missing_ok=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            return
    leave(host_dir, log_dir, exit_code)
    _end_as(exit_code)


def _network(line: socket.socket, folder: Path) -> AgentNetwork:
    # A late import, so that the program starts earlier.
    from lockstep.watchdog.agent_network import AgentNetwork

    return AgentNetwork(line, folder)


def _report_kill(process: int, agent: WorkerAgent, program: Program) -> None:
    """Says why the program was killed, unless the supervisor says it."""
    if program.lease_is_over:
        why = lease.over(True, agent.supervisor)
    elif program.was_killed and program.was_stopped:
        why = f"it had not ended {agent.grace_after_sigterm:g} s after SIGTERM (--grace)"
    elif program.was_killed and agent.is_lost:
        why = f"{LOST}, and it had not ended {agent.grace:g} s later (--grace)"
    else:
        return
    complain(f"process {process} was killed: {why}")


def _ends_attempt(
    host_dir: HostDir,
    ending: _run_files.Exit,
    agent: WorkerAgent,
    program: Program,
    has_supervisor: bool,
) -> bool:
    """Reports to the supervisor how the program ended; returns whether the job starts again.

    ``has_supervisor``: the supervisor ends with this process, and reports when the other programs
    have ended.
    """
    with contextlib.suppress(OSError):  # a full disk
        ending.write(host_dir.folder)
    record = _run_files.ErrorRecord.read(host_dir.folder)
    agent.ended(ending, record, program.asked_to_end, program.was_killed)
    if not program.asked_to_end:
        return bool(agent.decision(float("inf")))
    # An agent that was asked to end leaves; another may come in its place.
    agent.decision(agent.grace_after_sigterm + _REPORT_SECONDS if has_supervisor else 0.0)
    return False


def _publish_exit(
    host_dir: HostDir,
    ending: _run_files.Exit,
    network: AgentNetwork,
    agent: WorkerAgent,
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
        _let_others_end(host_dir, network, agent)
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


def _let_others_end(host_dir: HostDir, network: AgentNetwork, agent: WorkerAgent) -> None:
    """Waits until the other processes have ended, at most ``--grace`` seconds.

    Many launchers kill a job as soon as one of its processes has ended with a failure. Before that
    the others should raise their errors, which need this agent's information, save their state, and
    end with their own status.
    """
    end = time.monotonic() + agent.grace
    while not agent.leaves and (left := end - time.monotonic()) > 0:
        network.meet_others()
        if network.others_have_ended() and _all_ended(host_dir):
            return
        agent.turn(min(_TURN_SECONDS, left))


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
            complain(f"{words}{where}")
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
