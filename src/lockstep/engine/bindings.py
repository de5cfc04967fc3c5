"""The engine's library, through ctypes.

jaxlib loads the same file through ``MPITRAMPOLINE_LIB``; the loader gives both the same instance,
so what is configured here is what jaxlib's collectives use. The C interface is described in
``native/api/python.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import hashlib
import pathlib
import re
from collections.abc import Callable, Sequence

import lockstep
from lockstep import _config
from lockstep._errors import EngineError
from lockstep.engine.options import COptions, Options

FILE = "liblockstep.so"
KERNELS = "liblockstep_linalg.so"
_Callback = ctypes.CFUNCTYPE(None)
_SiteCallback = ctypes.CFUNCTYPE(ctypes.c_uint32)
_Ids = ctypes.POINTER(ctypes.c_int)
_Counts = ctypes.POINTER(ctypes.c_uint64)


class _Callbacks(ctypes.Structure):
    _fields_ = [
        ("start", _Callback),
        ("devices", _Callback),
        ("site", _SiteCallback),
    ]


_FUNCTIONS = {
    "version": (ctypes.c_char_p,),
    "last_error": (ctypes.c_char_p,),
    "set_callbacks": (None, ctypes.POINTER(_Callbacks)),
    "fail": (None, ctypes.c_char_p),
    "create_arena": (ctypes.c_int, ctypes.c_uint64),
    "start": (ctypes.c_int, ctypes.POINTER(COptions)),
    "set_devices": (ctypes.c_int, ctypes.c_int, _Ids, _Ids),
    "counts": (None, _Counts),
    "failed_calls": (ctypes.c_uint64,),
    "finish": (None,),
    "forked": (None,),
    "abort": (None, ctypes.c_char_p),
    "abort_text": (ctypes.c_char_p,),
    "forbid": (None, ctypes.c_char_p),
    "recorder_problem": (ctypes.c_char_p,),
    "listens_at": (ctypes.c_char_p,),
    "send_message": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_double),
    "next_message": (ctypes.c_int, ctypes.c_double, ctypes.POINTER(ctypes.c_void_p), _Counts),
    "request": (ctypes.c_char_p, _Counts),
    "respond": (ctypes.c_int, ctypes.c_uint64, ctypes.c_int),
    "leave": (None, ctypes.c_int),
    "set_watched": (None, ctypes.c_int),
}
"""The result and the arguments of the functions for which ctypes would assume others."""


def library_path() -> pathlib.Path:
    """The engine's library: ``LOCKSTEP_ENGINE``, or the one installed with this package."""
    override = _config.current().engine
    if override is not None:
        path = pathlib.Path(override)
        if not path.is_file():
            raise EngineError(f"LOCKSTEP_ENGINE={override!r}: no such file.")
        return path.resolve()
    return installed(FILE)


def kernels_path() -> pathlib.Path:
    """The library of the kernels of `lockstep.linalg`, beside the engine that it was built with."""
    return library_path().with_name(KERNELS)


def installed(file: str) -> pathlib.Path:
    """A library that is installed with this package; raises `EngineError` when it is not there."""
    for folder in lockstep.__path__:
        if (path := pathlib.Path(folder) / file).is_file():
            return path.resolve()
    raise EngineError(
        f"{file} is not in {', '.join(lockstep.__path__)}: this copy of Lockstep was not "
        "installed, so its engine was never built. Run `make demo` in the source tree, or "
        "`pip install .`."
    )


@functools.cache
def interface() -> str:
    """A hash of the names of the functions of the engine and the kernels; "none" without an engine.

    The files are read and not loaded: a job over gloo does not need the engine, but its processes
    must have the same kernels of `lockstep.linalg`.
    """
    try:
        names = _functions(library_path())
    except (EngineError, OSError):
        return "none"
    with contextlib.suppress(OSError):
        names |= _functions(kernels_path())
    return hashlib.sha256(b" ".join(sorted(names))).hexdigest()[:8]


def _functions(library: pathlib.Path) -> set[bytes]:
    return set(re.findall(rb"\0(lockstep_\w+)(?=\0)", library.read_bytes()))


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(library_path()))
    except OSError as error:
        raise EngineError(f"the engine's library cannot be loaded: {error}.") from error
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, f"lockstep_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _check(status: int) -> None:
    if status != 0:
        raise EngineError(_library().lockstep_last_error().decode())


def version() -> str:
    return _library().lockstep_version().decode()


# ctypes frees a callback when its object dies; the engine keeps the pointer for the process's life.
_kept: list[_Callbacks] = []


def set_callbacks(
    start: Callable[[], None],
    devices: Callable[[], None],
    site: Callable[[], int],
) -> None:
    """Tells the engine what to call; an exception in a callback becomes the engine's error."""

    def reporting(callback: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                callback()
            # The caller is C: what escapes here would be printed and lost.
            except BaseException as error:
                text = str(error)
                if not text.startswith("lockstep: "):
                    text = f"{type(error).__name__}: {text}"
                _library().lockstep_fail(text.encode())

        return run

    callbacks = _Callbacks(
        _Callback(reporting(start)), _Callback(reporting(devices)), _SiteCallback(site)
    )
    _kept.append(callbacks)
    _library().lockstep_set_callbacks(ctypes.byref(callbacks))


def create_arena(nonce: int) -> int:
    """Makes this host's shared memory and returns its file descriptor, which the caller closes."""
    fd = _library().lockstep_create_arena(nonce)
    if fd < 0:
        raise EngineError(_library().lockstep_last_error().decode())
    return fd


def start(options: Options) -> None:
    """Maps the arena and makes the engine ready for collectives."""
    _check(_library().lockstep_start(ctypes.byref(options.to_c())))


def set_devices(devices: Sequence[tuple[int, int]]) -> None:
    """The table of all devices: (global id, process index)."""
    array = ctypes.c_int * len(devices)
    ids, processes = array(*(d for d, _ in devices)), array(*(p for _, p in devices))
    _check(_library().lockstep_set_devices(len(devices), ids, processes))


def virtual_tables() -> int:
    """Which of XLA's classes were found in jaxlib, once the engine has started: 3 for both."""
    return _library().lockstep_virtual_tables()


def counts() -> dict[str, int]:
    """How many calls of each kind jaxlib has made to this process's engine.

    An all-reduce, all-gather or reduce-scatter is one call per device; an all-to-all is one per
    device and peer; a collective-permute is one per device that receives.
    """
    values = (ctypes.c_uint64 * 5)()
    _library().lockstep_counts(values)
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
    return dict(zip(names, values, strict=True))


def failed_calls() -> int:
    """How many calls of jaxlib's to this process's engine have failed in threads of XLA's own.

    In a thread of Python's, JAX raises the error at once.
    """
    return _library().lockstep_failed_calls()


def python_threads() -> int:
    """How many threads of Python's are in a collective now; threads of XLA's own do not count."""
    return _library().lockstep_python_threads()


def abort(text: str) -> None:
    """Fails the job: every rank that waits, and every later collective, raises ``text``."""
    _library().lockstep_abort(text.encode())


def abort_text() -> str:
    """What the job failed with; "" while it is healthy."""
    return _library().lockstep_abort_text().decode(errors="replace")


def forbid(text: str | None) -> None:
    """From now on every collective of this process raises ``text`` at once; None lifts it."""
    _library().lockstep_forbid(text.encode() if text is not None else None)


class Leaving(enum.IntEnum):
    """How this process's program has come to its end."""

    ENDED = 1
    FAILED = 2


def finish() -> None:
    """Waits until no collective is left of what the program has dispatched."""
    _library().lockstep_finish()


def leave(state: Leaving) -> None:
    """Writes into this process's record how its program has ended."""
    _library().lockstep_leave(state)


def forked() -> None:
    """In a forked child: lets go of the connections to other hosts, which are its parent's."""
    _library().lockstep_forked()


def recorder_fd() -> int:
    """The descriptor of this process's record; the engine owns it."""
    return _library().lockstep_recorder_fd()


def recorder_problem() -> str:
    """Why the record is not kept in a file; "" when it is, or was not to be."""
    return _library().lockstep_recorder_problem().decode(errors="replace")


def alarm_fd() -> int:
    """A descriptor that is readable once a rank has waited long or has a request."""
    return _library().lockstep_wake_up_fd()


def set_watched(watched: bool) -> None:
    """Says whether a watchdog reads the alarm and responds to requests."""
    _library().lockstep_set_watched(watched)


def request() -> tuple[int, str] | None:
    """The next request of a rank, by number: "programs", "deadline" or a divergence (python.h)."""
    number = ctypes.c_uint64()
    text = _library().lockstep_request(ctypes.byref(number)).decode(errors="replace")
    return (number.value, text) if number.value else None


def respond(number: int, response: bool | None) -> bool:
    """Answers the request of that number; None where the answer is not known.

    Returns whether a rank has waited for it.
    """
    return bool(_library().lockstep_respond(number, -1 if response is None else int(response)))


def listens_at() -> tuple[str, int] | None:
    """The host and port for the engines of other hosts; also once it is closed."""
    host, _, port = _library().lockstep_listens_at().decode().rpartition(":")
    return (host.strip("[]"), int(port)) if port else None


def is_lost(process: int) -> bool:
    """Whether the engine has lost the connection of a process, or seen that it has died.

    Only known where there are several hosts.
    """
    return _library().lockstep_is_lost(process) == 1


def has_left(process: int) -> bool:
    """Whether a process has reported the end of its program."""
    return _library().lockstep_has_left(process) == 1


def connect(process: int) -> bool | None:
    """Begins with the connections to a process, for which `send_message` otherwise waits.

    Returns whether they are there, and None when there can be none.
    """
    found = _library().lockstep_connect(process)
    return None if found < 0 else found == 1


def is_connected(process: int) -> bool:
    """Whether `send_message` to a process need not wait for connections."""
    return _library().lockstep_is_connected(process) == 1


def send_message(process: int, message: bytes, timeout: float) -> bool:
    """Whether the message is on its way to a process of another host, which gets it whole."""
    return _library().lockstep_send_message(process, message, len(message), timeout) == 0


class NoMoreMessages(Exception):
    """The connections to other hosts have ended."""


def next_message(timeout: float) -> tuple[int, bytes] | None:
    """The next message and its sender; None when none came in ``timeout`` seconds."""
    data, count = ctypes.c_void_p(), ctypes.c_uint64()
    process = _library().lockstep_next_message(timeout, ctypes.byref(data), ctypes.byref(count))
    if process == -2:
        raise NoMoreMessages
    return None if process < 0 else (process, ctypes.string_at(data, count.value))
