"""Reads the Python stacks of another process, also while that process hangs.

The other process calls `install` beforehand: then a real-time signal makes faulthandler write the
stacks of all threads into a file. That handler is C and needs neither the interpreter's lock nor
memory, so it also works while native code holds both. `request` sends the signal and reads the
file. A process that cannot answer, because it is stopped or stuck in the kernel, is described from
/proc instead.

It is a real-time signal because programs and libraries use the others. Its default action ends a
process, so it is sent only to a process that catches it according to /proc.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lockstep import _run_files
from lockstep.system import process_tree

FILE = _run_files.STACKS
SIGNAL = signal.SIGRTMAX - 4
SAMPLE_SECONDS = 0.2
"""Time between two reads of the processor time that a process has used."""
MAX_FRAMES = 40
"""Lines of one thread that are kept, since a recursion may have a thousand."""

_POLL_SECONDS = 0.01
_QUIET_POLLS = 10
"""The answer is complete when the file has not grown for this many polls."""
_PACKAGE = Path(__file__).parent.parent
_OURS = (
    f'File "{_PACKAGE / "processes"}',
    f'File "{_PACKAGE / "pool"}',
    'File "<frozen runpy>"',
)
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_FIRST_THREAD = re.compile(r"^(?<!\n\n)(?:Current thread|Thread) 0x", re.MULTILINE)
"""The first line of a dump: faulthandler puts an empty line before the other threads."""
_LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages", "<frozen ")
_TICKS = os.sysconf("SC_CLK_TCK")
STOPPED = "stopped, by a signal (kill -STOP, Ctrl-Z) or by a batch system"
_STATES = {
    "R": "it runs",
    "S": "it sleeps",
    "D": "it waits inside the kernel and cannot be interrupted: a disk or a network file system "
    "that does not answer",
    "T": f"it is {STOPPED}; kill -CONT continues it",
    "t": "a debugger has stopped it",
    "Z": "it has ended",
    "X": "it has ended",
    "I": "it is idle in the kernel",
}

_file: IO[str] | None = None  # faulthandler keeps the descriptor only


def install(path: Path) -> None:
    """Lets other processes request this process's stacks, which are appended to ``path``."""
    global _file
    _file = path.open("a")
    faulthandler.register(SIGNAL, file=_file, all_threads=True, chain=False)


def request(pid: int, path: Path, timeout: float = 1.0) -> str:
    """The stacks of process ``pid``, which has called ``install(path)``.

    If it does not answer within ``timeout`` seconds: its state as /proc shows it.
    """
    state = _state(pid)
    if state in "TtZX" or not _catches(pid):
        return describe(pid)
    try:
        text = _answer(pid, path, time.monotonic() + timeout)
    except OSError:  # it has ended, perhaps with the file, which may be its memory
        return describe(pid)
    return shortened(text) if text else describe(pid, timeout)


def _answer(pid: int, path: Path, deadline: float) -> str:
    """The last dump that began after this call.

    faulthandler drops a signal that comes while it answers another one, so the signal is repeated
    when all that came was the rest of another request's dump.
    """
    text = ""
    while not text and time.monotonic() < deadline:
        before = path.stat().st_size
        context = _read(path, max(0, before - 2))[:2]  # for the look behind of _FIRST_THREAD
        os.kill(pid, SIGNAL)
        text = _last_dump(context + _grown(path, before, deadline), len(context))
    return text


def _grown(path: Path, start: int, deadline: float) -> str:
    """What is written from ``start`` on until a line is whole and nothing follows it."""
    text, quiet = "", 0
    while time.monotonic() < deadline and not (text.endswith("\n") and quiet >= _QUIET_POLLS):
        time.sleep(_POLL_SECONDS)
        now = _read(path, start)
        quiet = quiet + 1 if now == text else 0
        text = now
    return text


def _read(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def _last_dump(text: str, start: int) -> str:
    starts = [found.start() for found in _FIRST_THREAD.finditer(text, start)]
    return text[starts[-1] :] if starts else ""


def main_thread(text: str) -> str:
    """The main thread's part of ``text``: faulthandler writes it last."""
    return text.split("\n\n")[-1]


def outside_libraries(text: str) -> str:
    """``/home/me/train.py:12 in step``: the innermost line of the main thread outside libraries.

    Else the innermost one. Without any frame, ``text`` itself.
    """
    frames = FRAME.findall(main_thread(text))
    own = (frame for frame in frames if not _is_in_library(frame[0]))
    found = next(own, frames[0] if frames else None)
    return f"{found[0]}:{found[1]} in {found[2]}" if found else text


def is_in(text: str, file: str) -> bool:
    """Whether the main thread runs a function of a file whose path ends with ``file``."""
    return any(path.endswith(f"/{file}") for path, _, _ in FRAME.findall(main_thread(text)))


def shortened(text: str) -> str:
    """faulthandler's text without Lockstep's own frames and threads, and with long threads cut."""
    blocks = text.strip("\n").split("\n\n")
    return "\n\n".join(_shortened_thread(block) for block in blocks if not _is_ours(block))


def _is_ours(block: str) -> bool:
    """Whether Lockstep has started this thread, and no line of the user runs in it."""
    files = [file for file, _, _ in FRAME.findall(block)]
    started_by = next((file for file in reversed(files) if file != threading.__file__), "")
    if not files or files[-1] != threading.__file__ or not _is_in_package(started_by):
        return False
    return all(_is_in_package(file) or _is_in_library(file) for file in files)


def _is_in_package(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE)


def _is_in_library(file: str) -> bool:
    return any(part in file for part in _LIBRARIES)


def _shortened_thread(block: str) -> str:
    title, *frames = (line for line in block.splitlines() if not line.strip().startswith(_OURS))
    if len(frames) >= MAX_FRAMES:
        frames[MAX_FRAMES - 1 :] = ["  ... more frames"]
    return "\n".join([title, *frames])


def describe(pid: int, waited: float | None = None) -> str:
    """A process as /proc shows it: its state, its processor time, the kernel function it is in.

    ``waited`` is how long an answer was waited for; None: no request was sent.
    """
    state = _state(pid)
    if state == "X":
        return f"No Python stacks: there is no process {pid}."
    why = "" if waited is None else f"; it did not answer within {waited:g} s"
    text = [f"No Python stacks{why}. The system says of process {pid}: {_STATES[state]}."]
    if state in "RSD":
        used = _cpu_seconds(pid)
        time.sleep(SAMPLE_SECONDS)
        used = _cpu_seconds(pid) - used
        text.append(f"It used {used:.2f} s of processor time in the last {SAMPLE_SECONDS} s.")
    text += [f"Thread {name} is in {place} of the kernel." for name, place in _in_kernel(pid)]
    return " ".join(text)


def _state(pid: int) -> str:
    """The letter of /proc/PID/stat; X when there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields and fields[0] in _STATES else "X"


def _stat(pid: int) -> list[str]:
    try:
        return process_tree.stat(pid)
    except OSError:
        return []


def _catches(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (SIGNAL - 1) & 1)


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def _in_kernel(pid: int) -> Iterator[tuple[str, str]]:
    """(thread's name, kernel function in which it sleeps), for the main thread."""
    with contextlib.suppress(OSError):
        task = Path(f"/proc/{pid}/task/{pid}")
        place = (task / "wchan").read_text()
        if place not in ("", "0"):
            yield (task / "comm").read_text().strip(), place
