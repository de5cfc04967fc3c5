"""The interpreter of ``--preload``, which has imported modules and is forked for each process.

Each request on its socket (`preload.Preloaded`) has the descriptors of a new process: an order (the
program, the environment, the cores), the standard streams, and what else it inherits. The fork is
made twice: the process in between ends at once, so the new process becomes a child of the agent,
which adopts orphans. The new process reports its pid when it can be signalled as any other one, and
then does what `child_main` does in an interpreter of its own.

What a module reads from the environment when it is imported was read here, once. JAX's variables
are such. Where a program sets one of them later, the first use of JAX says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import fcntl
import functools
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._errors import ConfigError
from lockstep._words import counted
from lockstep.bootstrap import late_imports
from lockstep.processes import child_main, user_program
from lockstep.system import process_tree

_ADOPTED_SECONDS = 30.0
_MOST_DESCRIPTORS = 64
_RESERVED = 256
"""The agent's descriptors below this number may be inherited: what an import opens lies above."""
_MOST_SHOWN = 1000
_GIVEN_TO_JAX = {"JAX_PLATFORMS": str, "JAX_NUM_CPU_DEVICES": int}
"""JAX reads them when it is imported, and uses them when it makes its devices: a value that the
program sets in between counts."""
_READ_LATER = ("JAX_COORDINATOR_", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS")
"""JAX reads them when the process joins its job."""
_OF_A_PROCESS = ("LOCKSTEP_", "JAX_PROCESS_ID")


@dataclasses.dataclass
class _Imported:
    """What the imports have changed in this process, which the program would see."""

    environ: Mapping[str, str | None]
    """Variables that were set, or removed (None)."""
    path: Sequence[str]
    excepthook: Callable[..., object]
    interrupt: Any
    """The handler of SIGINT."""

    def put_back(self) -> None:
        """Does to this process, after `child_main`'s preparations, what the imports have done."""
        sys.path[:] = self.path
        if self.excepthook is not sys.__excepthook__:
            sys.excepthook = self.excepthook
        if callable(self.interrupt):
            signal.signal(signal.SIGINT, self.interrupt)


def main() -> None:
    faulthandler.enable()
    line = socket.socket(fileno=_moved(int(sys.argv[1]), _reserved()))
    imported = _import(sys.argv[2].split(","), sys.argv[3:])
    sys.stdout.flush()
    if isinstance(imported, str):
        line.send(json.dumps({"problem": imported[:_MOST_SHOWN]}).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process_tree.adopt_orphans(False)  # the agent adopts the new processes
    gc.freeze()  # no collection touches, and so copies, the pages that all forks share
    line.send(json.dumps({"ready": True}).encode())
    if (fds := _serve(line)) is not None:
        order = _become(fds, imported.environ, line)
        line.close()
        sys.argv[:] = [child_main.__file__, "--", *order["program"]]
        child_main.main(imported.put_back)


def _import(modules: Sequence[str], program: Sequence[str]) -> _Imported | str:
    """Imports the modules as the program would, or says why that cannot be."""
    environ, words, folder = dict(os.environ), list(sys.argv), os.getcwd()
    user_program.prepare(program)
    with _reserved_descriptors():
        for name in modules:
            try:
                __import__(name)
            except BaseException as error:
                return _why_not(name, error)
            if why := _not_to_be_forked():
                return f"importing {name} {why}. Leave it out, so that each process imports it."
        if "jax" in sys.modules:
            # A module that is missing here is imported by the fork, which says what is wrong.
            with contextlib.suppress(Exception):
                late_imports.import_all()
    if os.getcwd() != folder:
        return f"importing {', '.join(modules)} has changed the directory. Leave it out."
    sys.argv[:] = words
    names = environ.keys() | os.environ.keys()
    changed = {k: os.environ.get(k) for k in names if os.environ.get(k) != environ.get(k)}
    interrupt = signal.getsignal(signal.SIGINT)
    return _Imported(changed, list(sys.path), sys.excepthook, interrupt)


def _reserved() -> int:
    return min(_RESERVED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _moved(fd: int, above: int) -> int:
    """Moves a descriptor to a number from ``above`` on."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(fd)
    return copy


@contextlib.contextmanager
def _reserved_descriptors() -> Any:
    """Has what is opened meanwhile get numbers that no descriptor of the agent has."""
    null = os.open(os.devnull, os.O_RDWR)
    held = [null]
    while held[-1] < _reserved() - 1:
        held.append(os.dup(null))
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)


def _why_not(name: str, error: BaseException) -> str:
    error.__traceback__ = user_program.own_traceback(error.__traceback__)
    if not (isinstance(error, ModuleNotFoundError) and error.name == name):
        traceback.print_exception(error)
    return f"importing {name} has failed: {child_main.summary(error)}"


def _not_to_be_forked() -> str:
    """What the import has done that a fork would lack; "" for nothing."""
    if "jax" in sys.modules and _jax_compat.has_backend():
        return "has made JAX's devices (with an array, say), which a fork cannot use"
    if len(os.listdir("/proc/self/task")) == 1:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of the threads that are looked for here
        if (pid := os.fork()) == 0:  # a BLAS ends its threads at a fork, and starts them again
            os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task")) - 1
    return f"has started {counted(threads, 'thread')}, which a fork would lack" if threads else ""


def _serve(line: socket.socket) -> list[int] | None:
    """Forks for each request until the agent has ended; returns descriptors in a new process."""
    agent = os.getppid()
    while True:
        data, fds, *_ = socket.recv_fds(line, 1, _MOST_DESCRIPTORS)
        if not data:
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what a module has printed in C
        try:
            between = os.fork()
        except OSError as error:
            _report(line, errno=error.errno)
            between = -1
        if between == 0:
            _fork_again(line, agent)
            return fds
        for fd in fds:
            os.close(fd)
        if between > 0:
            os.waitpid(between, 0)


def _fork_again(line: socket.socket, agent: int) -> None:
    """Ends this process, which is in between; returns in the new one, a child of the agent."""
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        _report(line, errno=error.errno)
        os._exit(1)
    deadline = time.monotonic() + _ADOPTED_SECONDS
    while os.getppid() == between and time.monotonic() < deadline:
        time.sleep(0.0005)
    process_tree.end_with_parent()  # only now: it counts for the parent that it has at the call
    if os.getppid() != agent:
        os._exit(1)
    os.setsid()


def _report(line: socket.socket, **answer: Any) -> None:
    line.send(json.dumps(answer).encode())


def _become(
    fds: list[int], set_by_imports: Mapping[str, str | None], line: socket.socket
) -> dict[str, Any]:
    """Takes the place of an interpreter that was started with this order, and reports it."""
    with open(fds[0]) as file:
        file.seek(0)
        order = json.load(file)
    if order["cores"] is not None:
        os.sched_setaffinity(0, order["cores"])
    if (taken := _place(fds[1:], [0, 1, 2], order["inherited"])) is not None:
        _report(line, problem=f"an import has opened descriptor {taken}, which Lockstep needs")
        os._exit(1)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # it was the null device
    os.environ.clear()
    os.environ.update(order["environ"])
    for name, value in set_by_imports.items():
        if value is None:
            os.environ.pop(name, None)
        elif not name.startswith(_OF_A_PROCESS):
            os.environ[name] = value
    _config.current.cache_clear()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # else all processes draw the same; Python seeds its own after a fork
    if "jax" in sys.modules:
        check = functools.partial(_check_variables, dict(os.environ))
        _jax_compat.install(
            "variables after --preload",
            "an error where the program sets a variable that jax has read already.",
            lambda: _jax_compat.around_backends(check),
        )
    _report(line, pid=os.getpid())
    return order


def _place(fds: Sequence[int], streams: list[int], inherited: list[int]) -> int | None:
    """Gives descriptors these numbers, and closes their own; returns an inherited number that is
    taken already."""
    numbers = streams + inherited
    above = max(numbers) + 1
    moved = [_moved(fd, above) for fd in fds]
    for number in inherited:
        with contextlib.suppress(OSError):
            os.fstat(number)
            return number
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    return None


def _check_variables(at_start: dict[str, str]) -> None:
    """Gives JAX what the program has set since, or raises `ConfigError` where that is too late."""
    jax: types.ModuleType = sys.modules["jax"]
    now = dict(os.environ)
    changed = {
        name
        for name in at_start.keys() | now.keys()
        if name.startswith("JAX_") and not name.startswith(_READ_LATER)
        if at_start.get(name) != now.get(name)
    }
    at_start.clear()
    at_start.update(now)  # said once
    given = {name for name in changed & _GIVEN_TO_JAX.keys() if name in now}
    for name in given:
        with contextlib.suppress(ValueError):
            jax.config.update(name.lower(), _GIVEN_TO_JAX[name](now[name]))
    if late := sorted(changed - given):
        name = late[0]
        raise ConfigError(
            f"the program has changed {', '.join(late)}, but --preload has imported jax before, "
            f"and jax reads its variables when it is imported. Set {name} before `lockstep run`, "
            f"call jax.config.update({name.lower()!r}, ...), or take jax out of --preload."
        )


if __name__ == "__main__":
    main()
