"""The launcher's output: the processes' lines on stdout and stderr, and the launcher's messages."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from lockstep.processes.alike_lines import AlikeLines, StreamLines
from lockstep.processes.line_merge import (
    LineCutter,
    Merger,
    Sink,
    prefix,
    same_file,
    wants_colour,
)

PROMPT_SECONDS = 0.1
"""An unfinished line of the process that can read stdin may be a prompt: it is shown after this
long."""

UNFINISHED_SECONDS = 5.0
"""That of another process is shown after this long. With ``PYTHONUNBUFFERED=1`` each part of
``print("loss", loss)`` comes by itself, and the value perhaps seconds after the name."""

MAX_BACKLOG = 1 << 20
"""With more unwritten bytes than this, the launcher stops reading from the processes."""

SCREEN = 50
"""What was shown this many lines ago is taken as read: the launcher's report does not repeat it."""

_BOLD_RED = "\x1b[1;31m"
_PLAIN = "\x1b[0m"
_TAIL = 1 << 16
"""The last bytes of a stream that are kept. Native code that aborts may print long stacks of all
threads after the reason, so this must be large."""


class Outlet:
    """Stdout or stderr of the launcher."""

    def __init__(self, fd: int, sink: Sink, merger: Merger) -> None:
        self.sink = sink
        self.merger = merger
        self.colour = wants_colour(fd)


class Console:
    """Both outlets, served by a selector whose keys carry the function to call."""

    def __init__(self, selector: selectors.BaseSelector, alike: AlikeLines | None = None) -> None:
        """``alike``: what is shown of lines that many processes write; None: all."""
        self._selector = selector
        self.alike = alike
        sinks = [Sink(1), Sink(2)]
        mergers = [Merger(), Merger()]
        if same_file(1, 2):
            # Both streams share one destination: neither may interrupt a line of the other.
            sinks[1], mergers[1] = sinks[0], mergers[0]
        self.stdout, self.stderr = (
            Outlet(fd, sink, merger)
            for fd, sink, merger in zip((1, 2), sinks, mergers, strict=True)
        )
        self._waiting: set[int] = set()
        self.unfinished: set[Stream] = set()
        """The streams with a line that has no end yet."""
        self._abandoned = False
        self.lines = 0
        """How many lines of processes have been put on the console."""

    def put(self, outlet: Outlet, source: object, prefix: bytes, text: bytes) -> None:
        self.lines += text.count(b"\n")
        outlet.sink.put(outlet.merger.put(source, prefix, text))
        self._serve(outlet.sink)

    def report(self, text: str, highlight: bool = False) -> None:
        """Prints a message of the launcher on stderr; ``highlight`` colours its first line."""
        first, *rest = text.split("\n")
        first = f"lockstep: {first}"
        if highlight and self.stderr.colour:
            first = f"{_BOLD_RED}{first}{_PLAIN}"
        lines = "\n".join([first, *rest, ""]).encode("utf-8", "backslashreplace")
        if self._abandoned:
            sink, merger = self.stderr.sink, self.stderr.merger
            sink.write_at_once(merger.put(self, b"", lines))
        else:
            self.put(self.stderr, self, b"", lines)

    def end_lines(self) -> None:
        """Ends the lines that processes have left unfinished, and says what was not shown."""
        for outlet in (self.stdout, self.stderr):
            outlet.sink.put(outlet.merger.end_line())
            self._serve(outlet.sink)
        if self.alike and (text := self.alike.summary()):
            self.report(text)

    def _serve(self, sink: Sink) -> None:
        if sink.backlog and sink.fd not in self._waiting:
            self._waiting.add(sink.fd)
            self._selector.register(sink.fd, selectors.EVENT_WRITE, lambda: self._write(sink))

    def _write(self, sink: Sink) -> None:
        sink.write_some()
        if not sink.backlog:
            self._waiting.discard(sink.fd)
            self._selector.unregister(sink.fd)

    @property
    def backlog(self) -> int:
        return self.stdout.sink.backlog + self.stderr.sink.backlog

    @property
    def congested(self) -> bool:
        return self.backlog > MAX_BACKLOG

    @property
    def gone(self) -> bool:
        """Whether the reader of stdout has gone."""
        return self.stdout.sink.broken

    @property
    def lost(self) -> str | None:
        """Why stdout cannot be written; None: it can, or its reader has gone.

        A reader that has gone is no error: ``| head`` exits as soon as it has read enough.
        """
        error = self.stdout.sink.error
        return error.strerror if error and error.errno != errno.EPIPE else None

    def abandon(self) -> None:
        """Stops waiting for readers: unwritten output is lost, except the launcher's messages."""
        self._abandoned = True
        for outlet in (self.stdout, self.stderr):
            outlet.sink.abandon()
            if outlet.sink.fd in self._waiting:
                self._write(outlet.sink)


class Stream:
    """Stdout or stderr of one process: shown line by line, and written unchanged to its log.

    ``fd`` is where its bytes come from; -1: they are passed to `feed`.
    """

    def __init__(
        self,
        fd: int,
        outlet: Outlet,
        console: Console,
        prefix: bytes,
        log: BinaryIO | None,
        may_prompt: bool,
        lines: StreamLines | None = None,
    ) -> None:
        """``lines``: what is left out on the screen; None: nothing."""
        self.fd = fd
        self.closed = False
        self._outlet = outlet
        self._console = console
        self._prefix = prefix
        self._cutter = LineCutter()
        self._log = log
        self._lines = lines
        self._hold_seconds = PROMPT_SECONDS if may_prompt else UNFINISHED_SECONDS
        self._tail = b""
        self.show_at = float("inf")
        """When the unfinished line should be shown, in ``time.monotonic()``; infinity: never."""
        self._shown_at = 0

    def read(self) -> None:
        """Reads what is available; call it when ``fd`` is readable."""
        self.feed(os.read(self.fd, 1 << 16))

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; none are the end."""
        if not data:
            self.close()
            return
        self._keep(data)
        self._tail = (self._tail + data)[-_TAIL:]
        self._show(self._cutter.feed(data))
        if self._cutter.unfinished:
            self.show_at = time.monotonic() + self._hold_seconds
            self._console.unfinished.add(self)
        else:
            self._forget_unfinished()

    def _forget_unfinished(self) -> None:
        self.show_at = float("inf")
        self._console.unfinished.discard(self)

    def _show(self, text: bytes) -> None:
        self._put(self._lines.feed(text) if self._lines else text)

    def _put(self, text: bytes) -> None:
        self._console.put(self._outlet, self, self._prefix, text)
        if text:
            self._shown_at = self._console.lines

    def _keep(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(data)
        except OSError as error:
            self._console.report(f"{self._log.name} ends here: {error.strerror}")
            self._log = None

    def show_unfinished(self) -> None:
        self._forget_unfinished()
        self._show(self._cutter.take())

    @property
    def tail(self) -> list[str]:
        """The last lines, also those that were shown long ago."""
        return self._tail.decode("utf-8", "replace").splitlines()

    @property
    def on_screen(self) -> list[str]:
        """The last lines; none if others have written a screen of lines since."""
        return self.tail[-SCREEN:] if self._console.lines - self._shown_at <= SCREEN else []

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.show_unfinished()
            if self._lines:
                self._put(self._lines.end())
            if self.fd >= 0:
                os.close(self.fd)
            if self._log is not None:
                with contextlib.suppress(OSError):
                    self._log.close()


def has_stdin() -> bool:
    """Whether a process that gets the launcher's stdin can read anything there."""
    try:
        return not os.path.samestat(os.fstat(0), os.stat(os.devnull))
    except OSError:  # it is closed
        return False


def open_log(folder: Path | None, name: str) -> BinaryIO | None:
    """The log ``name`` in ``folder``, made anew; None without a folder."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / name).open("wb", buffering=0)


def prefixes(hosts: Sequence[str], outlet: Outlet, prefixed: bool) -> list[bytes]:
    """The prefix of each process's lines on ``outlet``; ``hosts``: that of each process."""
    if not prefixed:
        return [b""] * len(hosts)
    return [prefix(i, hosts, outlet.colour) for i in range(len(hosts))]
