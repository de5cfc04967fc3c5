"""The main module of each process of a job: prepares it, runs the program, handles its errors.

The launcher starts ``python -m lockstep.processes.child_main -- script.py args...`` and passes all
settings in ``LOCKSTEP_*`` variables. jax is imported here only with ``--auto-init``, because
programs set ``XLA_FLAGS`` and the like in their first lines.

**Exit.** A program without an error ends as usual in Python, with JAX's shutdown, which waits for
the other processes. A program with an error must end soon, but JAX's exit handler would wait up to
five minutes for peers that wait for this process. So after the error is recorded and printed, the
exit handlers get `EXIT_SECONDS`; then the process ends without the rest of Python's finalization
(joining threads, destructors).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import hashlib
import os
import re
import signal
import sys
import textwrap
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from lockstep import _run_files
from lockstep._config import Config, current
from lockstep._jax_compat import texts
from lockstep.processes import tracebacks, user_program
from lockstep.processes.advice import advice
from lockstep.system import stack_dump

EXIT_SECONDS = 2.0
"""Seconds for the exit handlers of a program that failed; less than the launcher's grace period."""
_OWN_PROGRAMS = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""The folder of Lockstep's own programs, such as the worker of a pool, which catches errors to
report them to its caller."""
_MAX_SHOWN = 120
"""Maximal number of characters of an engine's error that each process prints."""


def main(before_program: Callable[[], object] = lambda: None) -> None:
    """``before_program`` is called when all is prepared."""
    command = sys.argv[sys.argv.index("--") + 1 :]
    config = current()
    process = os.getpid()
    os.environ.pop("LOCKSTEP_AGENT", None)  # children of the program do not inherit it
    _ready_for_signals(config)
    faulthandler.enable()
    if (folder := config.own_dir) is not None:
        with contextlib.suppress(OSError):
            stack_dump.install(folder / stack_dump.FILE)
    # Pipes are block-buffered by default: the last lines of a killed process would be lost.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    user_program.prepare(command)
    sys.excepthook = functools.partial(_show, config)
    before_program()
    try:
        if config.auto_init:
            import lockstep

            lockstep.initialize()
        try:
            _run(command)
        finally:
            if os.getpid() == process:
                _note_if_alone(config)
    except SystemExit as error:
        error.__suppress_context__ = True  # argparse has told of the error that it handled
        code = _exit_code(error)
        if os.getpid() != process or code == 0:
            sys.exit(code)
        _record(config, code, error)
        _end(code)
    except BaseException as error:
        if os.getpid() != process:
            raise
        if isinstance(error, KeyboardInterrupt):
            _interrupted(config, error)
        _record(config, 1, error)
        _print(error)
        _end(1)


def _run(command: Sequence[str]) -> None:
    """Runs the program and what it has dispatched; raises what either fails with."""
    ended = None
    try:
        user_program.run(command)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
        ended = error
        if own_waits := sys.modules.get("lockstep.watchdog.own_waits"):
            own_waits.note_exit(error)
    if hook := sys.modules.get("lockstep.watchdog.shutdown_hook"):  # else it has joined no job
        try:
            hook.finish()
        except Exception as error:
            error.__traceback__ = None  # no line of it is the program's
            raise error
        _note_caught(current(), hook.caught())
    if ended is not None:
        raise ended


def _stopping(config: Config) -> bool:
    return bool(config.run_dir) and Path(config.run_dir or "", _run_files.STOPPING).exists()


def _ready_for_signals(config: Config) -> None:
    # The launcher starts this process with SIGINT ignored. A SIGINT during Python's start was lost,
    # so check whether the launcher is stopping the job.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _stopping(config):
        _die_of_interrupt()


def _die_of_interrupt() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(128 + signal.SIGINT)


def _exit_code(error: SystemExit) -> int:
    """The exit code of ``sys.exit(...)``; prints a text, as Python does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        print(error.code, file=sys.stderr)
    return 1


def summary(error: BaseException) -> str:
    """The type and the first line of an error, as a line of a report."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})"
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return text.splitlines()[-1] if isinstance(error, SyntaxError) else texts.first_line(text)


def _record(config: Config, code: int, error: BaseException) -> None:
    """Writes the error for the launcher, and wakes the launcher up."""
    happened = time.monotonic()
    error.__traceback__ = user_program.own_traceback(error.__traceback__)
    if text := advice(error, config.process_id or 0):
        error.add_note(text)
    if (folder := config.own_dir) is None:
        return
    with contextlib.suppress(Exception):
        record = _run_files.ErrorRecord(
            happened, code, summary(error), "".join(traceback.format_exception(error))
        )
        record.write(folder)
        _run_files.ring(Path(config.run_dir or ""))


def _note_caught(config: Config, text: str) -> None:
    """Says, once on a host, that a program which ends well has caught the error of a collective."""
    if not text or config.run_dir is None or sys.argv[0].startswith(_OWN_PROGRAMS):
        return
    first = (text.partition("lockstep: ")[2] or text).partition("\n")[0]
    first = re.split(r"[.?] (?=[A-Z])", first, maxsplit=1)[0].rstrip(".")  # advice comes later
    line = (
        "lockstep: a collective has failed, and this program has caught the error and ends with "
        f"status 0: {first}. If that is no success, end it by `raise` or sys.exit(1).\n"
    )
    if _shown_by_another(config, line) is None:
        sys.stderr.write(line)


def _note_if_alone(config: Config) -> None:
    """Leaves a note for the launcher if the program used JAX without joining the job."""
    if "jax" not in sys.modules:
        return
    with contextlib.suppress(Exception):
        from lockstep import _jax_compat

        if _jax_compat.has_backend() and _jax_compat.distributed_client() is None:
            _run_files.leave_note(config.own_dir, _run_files.ALONE)


def _print(error: BaseException) -> None:
    """Prints an uncaught exception like Python, with the program's own hook if it has one."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        traceback.print_exception(error)


def _show(
    config: Config,
    kind: type[BaseException],
    error: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Prints an error without the frames of libraries.

    Under ``lockstep run`` a traceback that processes of this host have in common is printed by the
    first of them, at once, and the others print one line. An engine's error is shortened here,
    because the launcher prints the whole text once for all processes.
    """
    full = config.full_tracebacks or tracebacks.jax_shows_all(os.environ)
    text = tracebacks.folded("".join(traceback.format_exception(kind, error, trace)), full)
    # Under `lockstep worker` there is no launcher of ours, and so no FIFO to it.
    if config.run_dir is not None and Path(config.run_dir, _run_files.WAKE_UP).exists():
        if not full and (found := tracebacks.parts(text)):
            stack, message = found
            line = f"lockstep: {_shortened(message)} (whole text: see the launcher's report)\n"
            text = line if _shown_by_another(config, stack) is not None else stack + line
        elif (other := _shown_by_another(config, text)) is not None:
            where = ", ".join(filter(None, (_shortened(summary(error)), tracebacks.place(text))))
            text = f"{where} (traceback as on process {other})\n"
    sys.stderr.write(text)


def _shortened(message: str) -> str:
    return textwrap.shorten(message.partition("\n")[0], _MAX_SHOWN, placeholder=" ...")


def _shown_by_another(config: Config, traceback: str) -> int | None:
    """The process of this host that prints the same traceback; None: this one has to print it."""
    digest = hashlib.sha256(traceback.encode("utf-8", "replace")).hexdigest()
    # The program may write errors where they are not seen.
    if (folder := config.attempt_dir) is None or sys.stderr is not sys.__stderr__:
        return None
    claim = folder / f"{_run_files.TRACEBACK}{digest[:16]}"
    try:
        # A link has its content as soon as it exists, and only one process can make it.
        claim.symlink_to(str(config.process_id))
    except FileExistsError:
        with contextlib.suppress(OSError, ValueError):
            other = int(os.readlink(claim))
            return other if other != config.process_id else None
    except OSError:
        pass
    return None


def _interrupted(config: Config, error: KeyboardInterrupt) -> NoReturn:
    """Ends like Python after Ctrl-C. If the launcher stops the job, prints one line: where."""
    error.__traceback__ = user_program.own_traceback(error.__traceback__)
    if _stopping(config):
        with contextlib.suppress(Exception):
            place = user_program.place_in_program(error.__traceback__)
            Path(config.own_dir or "", _run_files.INTERRUPTED).write_text(place)
            print(f"stopped{place}", file=sys.stderr)
    else:
        _record(config, 128 + signal.SIGINT, error)
        _print(error)
    _run_exit_handlers(lambda: os._exit(128 + signal.SIGINT))
    _die_of_interrupt()


def _end(code: int) -> NoReturn:
    _run_exit_handlers(lambda: os._exit(code))
    os._exit(code)


def _run_exit_handlers(give_up: Callable[[], NoReturn]) -> None:
    def watch() -> None:
        time.sleep(EXIT_SECONDS)
        give_up()

    with contextlib.suppress(BaseException):
        _flush()
        threading.Thread(target=watch, daemon=True).start()
        if current().collectives == "mpi":
            from lockstep.bootstrap import mpi_backend

            mpi_backend.abandon()
        atexit._run_exitfuncs()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


if __name__ == "__main__":
    main()
