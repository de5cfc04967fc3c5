"""What the processes of a pool print, as it comes from the launcher: by lines, with a number each.

At the end of a call each process writes a mark into both of its streams. So the caller knows when
it has all that the call has printed.
"""

from __future__ import annotations

import collections
import contextlib
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from lockstep.processes import line_merge
from lockstep.processes.first_failure import LAST_WORDS

STREAMS = ("stdout", "stderr")
_RANK = re.compile(rb"\[ *(\d+)[\]@]")
_MARK = re.compile(rb"\0lockstep-call-(\d+)\0$")


def mark(number: int) -> bytes:
    """What a process writes after call ``number``."""
    return b"\0lockstep-call-%d\0\n" % number


class Output:
    """The output of all processes, shown on this process's ``sys.stdout`` and ``sys.stderr``."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """``hosts``: that of each process."""
        self._hosts = hosts
        self.is_shown = True
        self._rest: dict[str, bytes] = dict.fromkeys(STREAMS, b"")
        self._marked: dict[tuple[str, int], int] = {}
        self.said: list[str] = []
        """The launcher's own lines on stderr."""
        self.last_words: dict[int, collections.deque[str]] = collections.defaultdict(
            lambda: collections.deque(maxlen=LAST_WORDS)
        )
        """The last lines of each process on stderr."""

    def feed(self, stream: str, data: bytes) -> None:
        """Takes bytes of the launcher's ``stream``; shows whole lines."""
        *lines, self._rest[stream] = (self._rest[stream] + data).split(b"\n")
        for line in lines:
            self._line(stream, line)

    def has_all(self, ranks: set[int], number: int) -> bool:
        """Whether all that ``ranks`` have printed up to the end of call ``number`` is shown."""
        return all(self._marked.get((s, r), -1) >= number for s in STREAMS for r in ranks)

    def end(self) -> None:
        """Shows what is left, at the launcher's end."""
        for stream in STREAMS:
            if self._rest[stream]:
                self.feed(stream, b"\n")

    def _line(self, stream: str, line: bytes) -> None:
        found = _RANK.match(line)
        rank, prefix = int(found[1]) if found else -1, b""
        if 0 <= rank < len(self._hosts):
            prefix = line_merge.prefix(rank, self._hosts, False)
        if not prefix or not line.startswith(prefix):
            self.said.append(line.decode("utf-8", "replace"))
            return
        text = line[len(prefix) :]
        if (marked := _MARK.search(text)) is not None:
            self._marked[stream, rank] = int(marked[1])
            text = text[: marked.start()]
            if not text:
                return
        if stream == "stderr":
            self.last_words[rank].append(text.decode("utf-8", "replace"))
        if self.is_shown:
            self._show(getattr(sys, stream), rank, text)

    def _show(self, target: TextIO | None, rank: int, text: bytes) -> None:
        # The caller may have closed or replaced its streams.
        with contextlib.suppress(Exception):
            assert target is not None
            coloured = target.isatty() and line_merge.wants_colour(target.fileno())
            prefix = line_merge.prefix(rank, self._hosts, coloured)
            target.write((prefix + text).decode("utf-8", "replace") + "\n")
            target.flush()
