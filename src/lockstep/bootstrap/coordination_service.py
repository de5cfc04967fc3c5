"""JAX's coordination service in a process of its own, so that it outlives process 0.

JAX starts the service inside process 0. When that process dies, the client in every other one finds
the connection closed and aborts its process, before Python can raise an error. So process 0 forks
right when JAX asks for the service, and the child serves. It is not a child of process 0: it leaves
the session, its parent ends at once, and under ``lockstep run`` the supervisor becomes its parent
and ends it with the job. Without that supervisor it ends by itself, when process 0 is gone and
no client is connected; once process 0 has left the job, it takes no new client.

A fork and no new program: jaxlib is loaded by then, and what another process would spend on loading
it (0.2 s of a core) is missing when all cores are busy starting the job. It is safe at this point:
JAX has made no backend and no connection yet, so jaxlib has no thread that could hold a lock. When
JAX is initialized a second time in one process it has, and the child is a new program. A program's
own threads might hold one the first time; if the child does not report in `READY_SECONDS`, it is
killed, and the service starts inside process 0, as it would without us, which a line on stderr
reports.

The child of a busy process holds nothing of it but memory: descriptors are closed, and it runs
no Python but the loop below.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lockstep import _config, _jax_compat, _run_files
from lockstep._errors import InitializationError
from lockstep._stderr import complain
from lockstep._words import processes
from lockstep.bootstrap import certificates
from lockstep.system import fd_limit, signal_pipe, tcp_info, tcp_ports

READY_SECONDS = 20.0
"""How long the child may take until it serves; a few milliseconds are usual."""
POLL_SECONDS = 0.2
"""How often a service that has lost process 0 checks whether clients are still connected."""
LEAVE_SECONDS = 30.0
"""How long all processes of a job may take to leave it, when they are to join another."""
SILENT_SECONDS = 10.0
"""How long a connected client may be unreachable, when process 0 is gone."""
ALONE_POLLS = 5
"""In how many checks in turn no client may be connected until it ends: a client may be between two
connections."""

_READY = b"ready"
# Other jobs of a cluster have the ports beside ours, and where the system chooses, an odd one stays
# odd: the even ones are those of its clients.
_LOWEST_PORT, _PORTS, _STEP = 1024, 64512, 2018

_job = 0
"""How many jobs of several processes this one was in before."""
_has_threads = False
"""Whether jaxlib may have threads in this process."""
_current: Outside | None = None
"""The service that this process has started."""


class Outside:
    """Stands for the service in process 0, where JAX shuts it down at the end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def log(self) -> str:
        """What the service has written so far."""
        try:
            return Path(f"/proc/{self._pid}/fd/2").read_text(errors="replace")
        except OSError:
            return ""

    def shutdown(self) -> None:
        """The child goes on serving the clients that are still connected, and ends after them."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR1)


def start(address: str, num_nodes: int, options: dict[str, Any]) -> Outside | None:
    """Runs `_jax_compat.coordination_service` in a process of its own.

    None when that cannot be, and the service has to start here.
    """
    global _current
    child = _spawn if _has_threads else _fork
    files = certificates.descriptors()

    def described(process_0: int, report_to: int) -> _Service:
        return _Service(address, num_nodes, options, _job, process_0, report_to, files)

    try:
        outside = _outside(lambda process_0, report_to: child(described(process_0, report_to)))
    # No process or descriptor left, a kernel without pidfd_open, no interpreter to start.
    except (OSError, TypeError, ValueError):
        outside = None
    if outside is None:
        complain(
            "JAX's coordination service did not start outside process 0 and runs inside: "
            "should process 0 die, JAX aborts the others at once."
        )
    _current = outside
    return outside


def log() -> str:
    """What the service of this job has written; "" in a process that cannot know it."""
    if _current is not None:
        return _current.log()
    if folder := _config.current().attempt_dir:
        with contextlib.suppress(OSError):
            return (folder / _run_files.COORDINATION_LOG).read_text(errors="replace")
    return ""


def replace(address: str, earlier: Sequence[str]) -> str:
    """Where the service of another job is, which was to be at ``address``.

    Under ``lockstep run`` the service of the earlier job is ended, and leaves its place. Without
    it, the end of all clients is not known, and it serves until then: the next one takes another
    port, which all processes know that were in the ``earlier`` jobs. Raises `InitializationError`
    when a process does not come.
    """
    global _job, _has_threads
    _job, _has_threads = len(earlier), True
    config = _config.current()
    if config.attempt_dir and config.local_num_processes == config.num_processes:
        _end_earlier_service(config.attempt_dir)
        return address
    taken = set(map(_port, earlier))
    port = _port(address)
    while port in taken:
        port = _LOWEST_PORT + (port - _LOWEST_PORT + _STEP) % _PORTS
    return f"{address.rpartition(':')[0]}:{port}"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _end_earlier_service(folder: Path) -> None:
    """Ends the service of an earlier job: process 0 does, and all others wait for that.

    A process that did not wait would still find the old service. Connections do not show it:
    backends of the earlier job may keep theirs.
    """
    config = _config.current()
    try:
        pid = int((folder / _run_files.COORDINATION_PID).read_text())
        service = os.pidfd_open(pid)
    except (OSError, ValueError):
        return
    try:
        if (folder / _serves(_job, pid)).exists():
            return  # the new one: process 0 has gone on, and comes here for its client too
        (folder / _left(_job, config.process_id)).touch()
        end = time.monotonic() + LEAVE_SECONDS
        while not select.select([service], [], [], POLL_SECONDS)[0]:
            stay = _staying_processes(folder, config.num_processes or 0)
            if not stay and config.process_id == 0:
                os.kill(pid, signal.SIGKILL)
            if time.monotonic() > end:
                # No process stays, so process 0 has come so far and died.
                names = processes(stay or [0])
                raise InitializationError(
                    f"after {LEAVE_SECONDS:g} s {names} has not left the earlier job: to join "
                    "another one, every process must call jax.distributed.shutdown() and then "
                    "initialize()."
                )
    finally:
        os.close(service)


def _staying_processes(folder: Path, count: int) -> list[int]:
    return [i for i in range(count) if not (folder / _left(_job, i)).exists()]


def _left(job: int, process: int | None) -> str:
    """Exists where that process is about to join that job."""
    return f"left_for_{job}_{process}"


def _serves(job: int, pid: int) -> str:
    """Exists where that process serves that job."""
    return f"serves_{job}_{pid}"


class _Service(NamedTuple):
    """What the process that serves is given; it goes through JSON to a new program."""

    address: str
    num_nodes: int
    options: dict[str, Any]
    job: int
    process_0: int
    """A descriptor of that process."""
    report_to: int
    """A pipe to it."""
    certificates: Sequence[int] = ()
    """Descriptors of files that ``options`` name."""


def _outside(make_child: Callable[[int, int], int]) -> Outside | None:
    process_0 = os.pidfd_open(os.getpid())
    report, report_to = os.pipe()
    try:
        try:
            child = make_child(process_0, report_to)
        finally:
            os.close(process_0)
            os.close(report_to)
        try:
            return _receive(report, child)
        finally:
            with contextlib.suppress(ChildProcessError):  # the program may ignore SIGCHLD
                os.waitpid(child, 0)
    finally:
        os.close(report)


def _fork(service: _Service) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork and threads: see the top of this file
        child = os.fork()
    if child == 0:
        _leave(service)
    return child


_PROGRAM = """
import json, sys
sys.path[:], *service = json.loads(sys.argv[1])
from lockstep.bootstrap import coordination_service
coordination_service.serve(service)
"""


def serve(service: Sequence[Any]) -> NoReturn:
    _leave(_Service(*service))


def _spawn(service: _Service) -> int:
    # The process that serves shall not prepare the engine.
    environ = {**os.environ, "LOCKSTEP_COLLECTIVES": "gloo"}
    arguments = json.dumps([sys.path, *service], default=int)  # NumPy's numbers, for one
    command = [sys.executable, "-P", "-c", _PROGRAM, arguments]
    for fd in (service.process_0, service.report_to, *service.certificates):
        os.set_inheritable(fd, True)
    try:
        return os.posix_spawn(sys.executable, command, environ)
    finally:
        for fd in service.certificates:  # the private key is for no other child
            os.set_inheritable(fd, False)


def _receive(report: int, child: int) -> Outside | None:
    """What the child's child reports: its pid at once, later that it serves."""
    deadline = time.monotonic() + READY_SECONDS
    text = b""
    poll = select.poll()
    poll.register(report, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        data = os.read(report, 256)
        if not data:
            return None
        text += data
        if text.endswith(_READY):
            return Outside(int(text.split()[0]))
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(text.split()[0]) if text else child, signal.SIGKILL)
    return None


def _leave(service: _Service) -> NoReturn:
    """Starts a child that serves, and ends this process, itself a child: so the service has no
    parent in the job."""
    try:
        os.setsid()
        if os.fork() == 0:
            os.write(service.report_to, b"%d " % os.getpid())
            _let_go({service.process_0, service.report_to, *service.certificates})
            _serve(service)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _serve(given: _Service) -> None:
    finish, _ = signal_pipe.open_for((signal.SIGUSR1,))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    service = _jax_compat.coordination_service(given.address, given.num_nodes, given.options)
    _sign(given.job)
    os.write(given.report_to, _READY)
    os.close(given.report_to)
    ended = select.select([given.process_0, finish], [], [])[0]
    if finish in ended:
        _stop_listening()
    port = _port(given.address)
    alone = 0
    while alone < ALONE_POLLS:
        time.sleep(POLL_SECONDS)
        _forget_unreachable_processes()
        alone = 0 if tcp_ports.established(port) else alone + 1
    del service


def _stop_listening() -> None:
    """All have met and process 0 leaves: what connects from now on is of the next job at this
    address, and must not meet the service of this one."""
    for each in tcp_info.tcp_sockets():
        with contextlib.suppress(OSError):
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                each.shutdown(socket.SHUT_RDWR)


def _forget_unreachable_processes() -> None:
    """Has the kernel end connections to unreachable hosts; all of this process are JAX's."""
    with contextlib.suppress(OSError):  # no descriptor left to read /proc with
        for each in tcp_info.tcp_sockets():
            with contextlib.suppress(OSError):  # no longer connected
                tcp_info.enable_keep_alive(each, SILENT_SECONDS)
                # While the kernel has data to send it sends no keep-alive probes.
                milliseconds = round(1000 * SILENT_SECONDS)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _let_go(kept: set[int]) -> None:
    """Closes what was process 0's: a reader may wait for the end of one of its pipes."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        if folder := _config.current().attempt_dir:
            log = folder / _run_files.COORDINATION_LOG
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        else:
            output = os.memfd_create("lockstep-coordination-log", os.MFD_CLOEXEC)
    except OSError:
        output = null
    for fd, target in ((0, null), (1, output), (2, output)):
        os.dup2(null if target == fd else target, fd)
    fd_limit.close_all_but(kept)


def _sign(job: int) -> None:
    """Tells the launcher the pid of the server, which it ends with the job."""
    if folder := _config.current().attempt_dir:
        with contextlib.suppress(OSError):
            (folder / _serves(job, os.getpid())).touch()
            (folder / _run_files.COORDINATION_PID).write_text(str(os.getpid()))
