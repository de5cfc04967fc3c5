"""What this process publishes beside its collectives: the barriers that it waits in, the exceptions
of its callbacks, and whether it can go on by itself.

A process is *at rest* when nothing in it can run until another process releases one of its waits:
each thread of Python's is in a barrier, in a collective, in a call of a compiled program, or waits
for a result of JAX's, all other threads sleep, no device but those in collectives has a result to
make, and no timer of the program may interrupt a barrier. So a computation in flight (also one that
sleeps, in a native call or on a GPU), a callback or a thread of the program that does something
else keeps a process from being at rest. `lockstep.flight_recorder.barriers` proves deadlocks with
it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from lockstep import _jax_compat
from lockstep._jax_compat import texts
from lockstep.callsites import frames
from lockstep.engine import bindings
from lockstep.flight_recorder.waits import MAX_USES, Barrier, Waits
from lockstep.job import current_job
from lockstep.system import process_tree

_REST_SECONDS = 1.0
"""A process counts as at rest when it was so in each scan for this long."""
_MAX_TEXT = 300
"""Letters of an exception's text; the headline has more to say."""
_CALLBACK_SECONDS = 10.0
"""After this long, a process whose collectives go on was not stopped by its callback."""
_IDLE = 0.5
"""A process at rest uses less than this share of one processor: its watchdog scans."""
_SNAPSHOTS = 5
_SNAPSHOT_PAUSE = 0.005
_OF_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"
_TASKS = Path("/proc/self/task")
_WAIT_FOR_RESULT = "block_until_ready"
_WAITING = ("_value", _WAIT_FOR_RESULT)
"""JAX's functions that wait for results. Others of its functions for arrays call the program."""


class OwnWaits(current_job.Part):
    """What this process publishes of its waits outside of collectives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: list[tuple[int, Barrier]] = []
        """The barriers, and the thread that waits in each."""
        self._uses: dict[str, int] = {}
        self._rest: tuple[int, int] | None = None
        self._callback = ""
        self._thread = ""
        self.left = ""
        """The call of ``sys.exit()`` with its line; "": the program has made none."""
        self.unanswered = ""
        """The other hosts that do not answer, in words; "": all do."""
        self._compiles = ("", 0.0)
        """The program that the process compiles, and since when."""
        self._raised_at = 0.0
        """When the callback raised."""
        self._progress: tuple[int, int] | None = None
        """The state of the collectives at the last scan."""
        self._path = ""
        self._sleeps: tuple[object, float, float] | None = None
        """Since the process seems to be at rest: what each scan has found the same, when that
        began, and the processor time that the process had used by then."""

    def keep_in(self, path: str) -> None:
        """From now on writes the waits to a file, for the other processes."""
        with self._lock:
            self._path = path
            self._write()

    @contextlib.contextmanager
    def inside(self, barrier: Barrier) -> Iterator[None]:
        """While this thread waits in ``barrier``.

        An error of kind `Deadlock` leaves what is written, for the report.
        """
        waiting = threading.get_ident(), barrier
        with self._lock:
            self._uses.pop(barrier.key, None)
            self._uses[barrier.key] = barrier.use
            while len(self._uses) > MAX_USES:
                self._uses.pop(next(iter(self._uses)))
            self._inside.append(waiting)
            self._write()
        try:
            yield
        except Deadlock:
            raise
        except BaseException:
            self._leave(waiting)
            raise
        self._leave(waiting)

    def _leave(self, waiting: tuple[int, Barrier]) -> None:
        with self._lock:
            self._inside.remove(waiting)
            self._rest, self._sleeps = None, None
            self._write()

    def note_callback(self, error: BaseException) -> None:
        """Publishes an exception of a callback."""
        with self._lock:
            self._callback = _with_place(error)
            self._raised_at = time.monotonic()
            self._write()

    def note_thread(self, name: str, error: BaseException) -> None:
        """Publishes the exception that has ended a thread: others may wait for it forever."""
        with self._lock:
            self._thread = f"thread {name} raised {_with_place(error)}"
            self._write()

    def note_exit(self, error: SystemExit) -> None:
        """Publishes where the program has called ``sys.exit()``."""
        if place := _place(error):
            with self._lock:
                self.left = f"sys.exit() at {place}"
                self._write()

    def note_unanswered(self, hosts: str) -> None:
        """Publishes which other hosts do not answer; "": all do."""
        if hosts != self.unanswered:
            with self._lock:
                self.unanswered = hosts
                self._write()

    def note_compilation(self, program: str, since: float) -> None:
        """Publishes what the process compiles since then; "": nothing any more."""
        with self._lock:
            self._compiles = program, since
            self._write()

    def note_rest(self, progress: tuple[int, int], native: bool) -> None:
        """Publishes whether this process is at rest, with collectives in the state ``progress``.

        To be called at each scan; several in a row have to find it so. ``native``: a compiled
        program of this process calls native code, which may sleep.
        """
        with self._lock:
            waiting = {thread for thread, _ in self._inside}
            self._forget_callback(progress)
            # A program that a callback has ended leaves results on its device that are never made.
            in_collectives = None if self._callback else progress[1]
        same = None if _computes(in_collectives) else _asleep(waiting, native)
        now, used = time.monotonic(), time.process_time()
        with self._lock:
            if same is None or self._sleeps is None or self._sleeps[0] != (same, progress):
                self._sleeps = None if same is None else ((same, progress), now, used)
            rest = None
            if self._sleeps is not None:
                _, since, used_then = self._sleeps
                idle = used - used_then < _IDLE * (now - since)
                rest = progress if idle and now - since >= _REST_SECONDS else None
            if self._rest != rest:
                self._rest = rest
                self._write()

    def _forget_callback(self, progress: tuple[int, int]) -> None:
        """The program has caught the exception where its collectives still go on later."""
        goes_on, self._progress = progress != self._progress, progress
        if self._callback and goes_on and time.monotonic() > self._raised_at + _CALLBACK_SECONDS:
            self._callback = ""
            self._write()

    def _write(self) -> None:
        if not self._path:
            return
        barriers = tuple(barrier for _, barrier in self._inside)
        told = (self._callback, self._thread, self.left, self.unanswered)
        program, since = self._compiles
        waits = Waits(barriers, self._uses, self._rest, *told, program, since)
        # The job goes on without a report of its barriers where they cannot be written.
        with contextlib.suppress(OSError), open(self._path, "w", encoding="utf-8") as file:
            file.write(json.dumps(waits.values()))


@functools.cache
def watch_callbacks() -> None:
    """From now on publishes the exceptions of callbacks."""

    def raised(error: BaseException) -> None:
        with contextlib.suppress(Exception):  # the program's own error comes first
            current_job.part(OwnWaits).note_callback(error)

    _jax_compat.install(
        _jax_compat.CALLBACKS,
        _jax_compat.CALLBACKS_LOST,
        lambda: _jax_compat.watch_callbacks(raised),
    )


@functools.cache
def watch_threads() -> None:
    """From now on publishes the exceptions that end threads of the program."""
    show = threading.excepthook

    def ended(args: threading.ExceptHookArgs) -> None:
        with contextlib.suppress(Exception):
            error, name = args.exc_value, args.thread.name if args.thread else "?"
            if error and args.exc_type is not SystemExit and not texts.is_engines(error):
                current_job.part(OwnWaits).note_thread(name, error)
        show(args)

    threading.excepthook = ended


def note_exit(error: SystemExit) -> None:
    """The program ends by ``sys.exit()``, with a status of 0. Raises nothing."""
    with contextlib.suppress(Exception):
        current_job.part(OwnWaits).note_exit(error)


def exit_of_program() -> str:
    """``sys.exit() at train.py:7``; "" where the program has not ended so. Raises nothing."""
    with contextlib.suppress(Exception):
        return current_job.part(OwnWaits).left
    return ""


class Deadlock(Exception):
    """A barrier that no process can release; its text is what the job has failed with."""


def _with_place(error: BaseException) -> str:
    """``ValueError: no such file, train.py:7 in log``."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return ", ".join(filter(None, (text.partition("\n")[0][:_MAX_TEXT], _place(error))))


def _place(error: BaseException) -> str:
    """``train.py:7 in log``, the innermost line of the program in an exception's traceback."""
    stack = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in stack if not _is_of_others(frame.filename)]
    places = (f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in own[-1:])
    return next(places, "").removesuffix(" in <module>")


def _is_of_others(file: str) -> bool:
    return frames.is_library(file) or frames.is_on_the_way(file)


def _computes(in_collectives: int | None) -> bool:
    """Whether a device may go on that is none of the ``in_collectives``, or a timer may end a wait.

    A native call may sleep in a computation, and a computation on a GPU needs no thread. None: the
    devices do not tell.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        return True
    return in_collectives is not None and len(_jax_compat.computing_devices()) > in_collectives


def _asleep(in_barriers: set[int], native: bool) -> object | None:
    """What stays the same while only another process can release this one.

    None: it can go on by itself. ``in_barriers`` are the threads that wait in barriers; ``native``
    as in `OwnWaits.note_rest`.
    """
    names = {t.ident: t for t in threading.enumerate()}
    waiting: dict[int, tuple[int, int]] = {}
    unknown = 0
    for ident, frame in sys._current_frames().items():
        thread = names.get(ident)
        if ident in in_barriers or (thread and thread.name.startswith("lockstep-")):
            continue
        calls = not native and _calls_program(frame)
        if thread is not None and (calls or _waits_for_result(frame)):
            waiting[ident] = id(frame), frame.f_lasti
        else:
            unknown += 1
    if unknown and unknown + len(waiting) > bindings.python_threads():
        return None
    own = {t.native_id for i, t in names.items() if i in in_barriers} | {threading.get_native_id()}
    for _ in range(_SNAPSHOTS):
        if _all_sleep(own):
            return waiting, unknown, in_barriers
        time.sleep(_SNAPSHOT_PAUSE)
    return None


def _waits_for_result(frame: FrameType) -> bool:
    """Whether a thread waits for the result of a computation, as by ``float(loss)``."""
    code = frame.f_code
    if code.co_name in _WAITING and _OF_JAX in code.co_filename:
        return True
    return frames.text_of_call(frame).endswith(f".{_WAIT_FOR_RESULT}()")


def _calls_program(frame: FrameType) -> bool:
    """Whether a thread calls a compiled program.

    If all threads sleep, the call waits until earlier ones have run: jaxlib lets a device have some
    32 programs in flight. A loop that reads its loss every hundred steps waits here.
    """
    if _jax_compat.executes(frame.f_code):
        return True
    return any(map(_jax_compat.is_compiled_function, frames.called(frame)))


def _all_sleep(without: set[int | None]) -> bool:
    for name in os.listdir(_TASKS):
        with contextlib.suppress(OSError):  # the thread has ended
            if int(name) not in without and process_tree.stat(int(name), _TASKS)[0] != "S":
                return False
    return True
