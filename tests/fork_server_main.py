"""The server of `fork_server`: a process that has imported jax, and forks.

It forks launchers, whose processes are forks of them in turn, because `_Popen` has the place of
Popen there. So these are children of the launcher, and ids, sessions, signals and exit statuses are
as always. `_execve` does what ``execve`` does for an interpreter: it replaces the environment,
closes files, resets signals, and runs the program. Where a variable differs that Python reads when
it starts, or jax when it is imported, it calls execve itself.

The server has one thread and no backend. It ends when the socket to the process that started it is
closed, and what it has forked is killed with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MARK = "TEST_RUN_MARK"
"""A variable with a value of its own in every run: it finds the run's processes, whoever started
them and whatever session they moved to."""
NO_MARK = "0" * 32
"""As long as every mark: `_show_mark` writes the mark in its place."""
NUMBER = b"%10d"
"""A report on a process: its id, and its status at the end."""
_LONGEST_REQUEST = 1 << 17
_READ_AT_THE_START = (
    *("PYTHON", "LANG", "LC_", "LD_", "GLIBC_", "MALLOC_", "OPENBLAS_", "GOTO_", "OMP_"),
    *("JAX_", "TF_", "TPU_", "MPITRAMPOLINE_"),
    *("LOCKSTEP_CHECK_REPLICAS", "LOCKSTEP_COLLECTIVES", "LOCKSTEP_ENGINE"),
    "LOCKSTEP_MPI_LIBRARY",
)
_GIVEN_TO_JAX = {
    "JAX_PLATFORMS": str,
    "JAX_NUM_CPU_DEVICES": int,
    "JAX_COMPILATION_CACHE_DIR": str,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": float,
}
"""Those of them that `_execve` passes on to a jax that is imported already."""

_NOT_CLEARED = {"jax", "jaxlib", "ml_dtypes", "numpy", "opt_einsum", "scipy"}

_ready: dict[str, Any] = {}
"""What the server had when it was ready to fork."""


def _serve(requests: socket.socket) -> None:
    atexit.register(_leave_to_the_kernel)  # registered first, so it is called last
    before = dict(os.environ)
    from lockstep.bootstrap import late_imports
    from lockstep.launch import worker_command
    from lockstep.processes import process_start

    process_start.subprocess = _with(subprocess, Popen=_Popen)
    worker_command.os = _with(os, execve=_execve)
    added_to_path = _python_path(before)
    _ready["path"] = [folder for folder in sys.path if folder not in added_to_path]
    _ready.update(of_jax=_settings_of_jax(), environ=before)
    late_imports.import_all()
    _ready["added"] = {name: os.environ[name] for name in os.environ.keys() - before.keys()}
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    requests.set_inheritable(False)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the attendants
    own = os.getpid()
    while True:
        text, fds, *_ = socket.recv_fds(requests, _LONGEST_REQUEST, 4)
        if not text:
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        if os.fork() == 0:
            try:
                _attend(own, fds, *json.loads(text))
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def _leave_to_the_kernel() -> None:
    """Python does not clear the modules of jax at the end of a fork.

    Clearing them copies every page of theirs, which takes longer than the fork.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] in _NOT_CLEARED]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules.pop(name)))


def _with(module: types.ModuleType, **replaced: object) -> Any:
    return types.SimpleNamespace(**{**vars(module), **replaced})


def _settings_of_jax() -> dict[str, Any]:
    import jax  # for the first time, and after lockstep

    return {name: getattr(jax.config, name.lower()) for name in _GIVEN_TO_JAX}


def _attend(
    parent: int,
    fds: Sequence[int],
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    enter: int,
) -> None:
    """Starts a process, reports its id and its end, and exits."""
    attendant = os.getpid()

    def prepare() -> None:
        _enter_namespaces(enter)
        _end_with(attendant)
        os.chdir(cwd)

    _end_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = _Popen(command, fds[0], fds[1], fds[2], env, preexec_fn=prepare).pid
    os.write(fds[3], NUMBER % pid)
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(BrokenPipeError):
        os.write(fds[3], NUMBER % status)
    os._exit(0)


def _end_with(parent: int) -> None:
    from lockstep.system import process_tree

    process_tree.end_with_parent()
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _enter_namespaces(pid: int) -> None:
    """As ``nsenter --preserve-credentials -U -n -m -u``."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = ("user", "net", "mnt", "uts") if pid else ()
    for fd in [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]:
        if libc.setns(fd, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: others may read its memory, as after execve
        platform._uname_cache = None  # type: ignore[attr-defined]  # has the name of the host


class _Popen:
    """What the launcher uses of ``subprocess.Popen``: the process is a fork of this one."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] = os.environ,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        process_group: int | None = None,
        close_fds: bool = True,
        preexec_fn: Callable[[], object] = lambda: None,
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if process_group is not None:
            with contextlib.suppress(OSError):  # each of the two processes is the first to do it
                os.setpgid(self.pid, process_group)
        if self.pid:
            return
        try:
            signal.set_wakeup_fd(-1)
            for fd, source in enumerate((stdin, stdout, stderr)):
                os.dup2(fd if source is None else source, fd)
            for fd in pass_fds:
                os.set_inheritable(fd, True)
            if start_new_session:
                os.setsid()
            preexec_fn()
            _execve(command[0], command, env)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(127)


def _execve(path: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Becomes ``python args...``; does not return."""
    if path != sys.executable or not _fits(environ):
        os.execve(path, [*command], environ)
    import jax
    import numpy

    from lockstep import _config

    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not os.get_inheritable(fd):
                os.close(fd)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(_ready["added"] | environ)
    _show_mark(environ.get(MARK, NO_MARK).encode())
    for name, kind in _GIVEN_TO_JAX.items():
        value = kind(environ[name]) if name in environ else _ready["of_jax"][name]
        jax.config.update(name.lower(), value)
    numpy.random.seed()  # Python seeds its own after a fork
    _config.current.cache_clear()
    sys.path[:] = _python_path(environ) + _ready["path"]
    _run(command[1:])


def _fits(environ: Mapping[str, str]) -> bool:
    """Whether what is read at the start is as the server has read it."""
    ready, wanted = _ready["environ"] | _ready["added"], _ready["added"] | environ
    names = {name for name in ready | wanted if name.startswith(_READ_AT_THE_START)}
    names -= {"PYTHONPATH", *_GIVEN_TO_JAX}
    return all(wanted.get(name) == ready.get(name) for name in names)


def _python_path(environ: Mapping[str, str]) -> list[str]:
    return [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _show_mark(mark: bytes) -> None:
    """Puts the mark where /proc/PID/environ has the server's, so that `support.marked` finds it."""
    with open("/proc/self/stat", "rb") as file:
        first, last = map(int, file.read().rpartition(b")")[2].split()[47:49])
    name = f"{MARK}=".encode()
    place = ctypes.string_at(first, last - first).index(name) + len(name)
    assert len(mark) == len(NO_MARK)
    ctypes.memmove(first + place, mark, len(mark))


def _run(args: Sequence[str]) -> None:
    """Runs ``[-P] script.py args...``, ``-m module`` or ``-c code``, and ends as Python does."""
    from lockstep.processes import user_program

    program = args[1:] if args[0] == "-P" else args
    assert program[0] in ("-c", "-m") or program[0][0] != "-", "no other options of Python"
    user_program.prepare(program)
    if args[0] == "-P":
        del sys.path[0]
    status: Any = 0
    try:
        user_program.run(program)
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        sys.excepthook(type(error), error, user_program.own_traceback(error.__traceback__))
        status = 1
    ctypes.pythonapi.Py_Exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
