"""Merges the output of many processes by lines, and writes it without waiting.

`LineCutter` and `Merger` are pure: bytes in, bytes out. Output is passed on unchanged, also bytes
that are not valid in any encoding.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Sequence

MAX_LINE = 1 << 16
"""An unfinished line with more bytes than this is shown in pieces."""

_LINE_START = re.compile(rb"\n|\r(?!\n)")
_ATOMIC_WRITE = 4096  # PIPE_BUF: a pipe that polls as writable takes this much at once
_COLOURS = (36, 33, 35, 32, 34, 31)


def prefix(process_id: int, hosts: Sequence[str], colour: bool) -> bytes:
    """The prefix of every line of a process, aligned: ``[3]``, and ``[3@a]`` where the job has
    several hosts; ``hosts``: that of each process."""
    number = f"{process_id:{len(str(len(hosts) - 1))}}"
    text = f"[{number}]"
    if len(set(hosts)) > 1:
        text = f"[{number}@{hosts[process_id]}]".ljust(len(number) + 3 + max(map(len, hosts)))
    if colour:
        text = f"\x1b[{_COLOURS[process_id % len(_COLOURS)]}m{text}\x1b[0m"
    return text.encode() + b" "


class LineCutter:
    """Cuts the bytes of one stream into whole lines, and keeps the beginning of the next."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def unfinished(self) -> bool:
        return bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """The bytes to show now: whole lines, or everything once a line is too long."""
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            shown, self._rest = self._rest + head + newline, tail
        else:
            shown, self._rest = b"", self._rest + data
        if len(self._rest) > MAX_LINE:
            shown += self.take()
        return shown

    def take(self) -> bytes:
        """Returns the unfinished line and forgets it."""
        rest, self._rest = self._rest, b""
        return rest


class Merger:
    """The lines of several sources on one destination, each line under its source's prefix.

    A source may leave a line unfinished (a prompt, a progress bar), and continue it as long as no
    other source writes. If another one does, the line is ended, and its rest gets a new prefix.
    """

    def __init__(self) -> None:
        self._open: object = None

    def put(self, source: object, prefix: bytes, text: bytes) -> bytes:
        """The bytes to write for ``text``, which ends with a newline unless it is unfinished."""
        if not text:
            return b""
        start = self.end_line() if self._open is not source else b""
        start += prefix if self._open is None else b""
        if b"\r" in text:
            body = _LINE_START.sub(lambda match: match[0] + prefix, text)
        else:
            body = text.replace(b"\n", b"\n" + prefix)  # ten times as fast
        self._open = source
        if text.endswith(b"\n"):
            body = body.removesuffix(prefix)
            self._open = None
        return start + body

    def end_line(self) -> bytes:
        """A newline if the last line is unfinished."""
        was_open, self._open = self._open is not None, None
        return b"\n" if was_open else b""


class Sink:
    """A buffered file descriptor: a slow reader never blocks the loop.

    The descriptor is shared with the process that started the launcher, so it must not be made
    non-blocking. Instead, ``poll`` comes before each write, and a write is small.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.error: OSError | None = None
        """The error of the last write; None: no write has failed."""
        self._pending = bytearray()

    @property
    def backlog(self) -> int:
        """Bytes that still have to be written."""
        return len(self._pending)

    def put(self, data: bytes) -> None:
        if not self.broken:
            self._pending += data

    def write_some(self) -> None:
        """Writes a piece; call it when the descriptor is writable. Sets ``broken`` on an error."""
        try:
            written = os.write(self.fd, self._pending[:_ATOMIC_WRITE])
        except OSError as error:
            self.error = error
            self.abandon()
        else:
            del self._pending[:written]

    def write_at_once(self, data: bytes) -> None:
        """Writes ``data`` if that does not block, and drops it otherwise."""
        ready = select.poll()
        ready.register(self.fd, select.POLLOUT)
        with contextlib.suppress(OSError):
            if ready.poll(0):
                os.write(self.fd, data[:_ATOMIC_WRITE])

    def abandon(self) -> None:
        """Drops unwritten bytes, and all that come later."""
        self.broken = True
        self._pending.clear()


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same terminal, pipe or file."""
    with contextlib.suppress(OSError):
        return os.path.sameopenfile(one, other)
    return False


def wants_colour(fd: int) -> bool:
    """Whether ``fd`` is a terminal that shows colours (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not plain and os.isatty(fd)
