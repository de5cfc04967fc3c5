"""Keeps what many processes say alike when a job fails to one screen. Pure: bytes in, bytes out.

Each process writes a line of its own about its end, and the first one of each host a traceback. A
job of 1,024 processes would write 2,000 lines, and its cause would be out of sight. So in a job
of more than `FEW` processes the first lines of each kind are shown, and others are counted. Logs
(``--log-dir``) keep all.
"""

from __future__ import annotations

import collections
import hashlib
import re

FEW = 32
"""Up to so many processes all lines are shown."""
SHOWN = 8
"""So many lines of a kind are shown, and as many more that have another text than those."""

_STOPPED = re.compile(rb"stopped( at .+:\d+)?\n")
_KINDS = {
    "stopped ...": _STOPPED,
    "... (whole text: see the launcher's report)": re.compile(
        rb".*\(whole text: see the launcher's report\)\n"
    ),
    "... (traceback as on process ...)": re.compile(rb".*\(traceback as on process \d+\)\n"),
}
_MARKS = (b"stopped", b"(whole text: see ", b"(traceback as on ", b"Traceback (most recent ")
_NUMBERS = re.compile(rb"\d+")
_BEGINS = b"Traceback (most recent call last):\n"
_MAX_BLOCK = 1 << 16


class AlikeLines:
    """What the processes of one job have written of this kind so far."""

    def __init__(self) -> None:
        self._shown: collections.Counter[str] = collections.Counter()
        self._texts: set[tuple[str, bytes]] = set()
        self._left_out: collections.Counter[str] = collections.Counter()
        self._stacks: dict[bytes, int] = {}
        """The process that has written each stack first, by the digest of the stack."""

    def shown(self, line: bytes) -> bytes:
        """``line``, or nothing where enough lines of its kind were shown."""
        kind = next((name for name, form in _KINDS.items() if form.fullmatch(line)), None)
        if kind is None:
            return line
        # Lines of the engine differ in numbers of processes; where a process was stopped matters.
        text = line if kind == "stopped ..." else _NUMBERS.sub(b"", line)
        most = SHOWN if (kind, text) in self._texts else 2 * SHOWN
        if self._shown[kind] >= most:
            self._left_out[kind] += 1
            return b""
        self._texts.add((kind, text))
        self._shown[kind] += 1
        return line

    def traceback(self, process: int, block: bytes) -> bytes:
        """A whole traceback, or its last line where another process has written the same stack."""
        stack, last = _parted(block)
        first = self._stacks.setdefault(hashlib.sha256(stack).digest(), process)
        if first == process:
            return stack + self.shown(last)
        if not any(form.fullmatch(last) for form in _KINDS.values()):
            last = last.rstrip(b"\n") + f" (traceback as on process {first})\n".encode()
        return self.shown(last)

    def summary(self) -> str:
        """What was left out; "": nothing."""
        if not self._left_out:
            return ""
        kinds = "; ".join(f"{count} x {kind}" for kind, count in self._left_out.items())
        return f"not shown, for others have said the same: {kinds}"


class StreamLines:
    """The lines of one process's stderr, on their way to the screen."""

    def __init__(self, job: AlikeLines, process: int) -> None:
        self._job = job
        self._process = process
        self._block = b""
        """The traceback that is being written."""

    def feed(self, text: bytes) -> bytes:
        """What is to be shown of ``text`` now."""
        if not self._block and not any(mark in text for mark in _MARKS):
            return text
        return b"".join(map(self._line, text.splitlines(keepends=True)))

    def _line(self, line: bytes) -> bytes:
        if self._block:
            self._block += line
            if line[:1] == b" " and len(self._block) < _MAX_BLOCK:
                return b""
            return self._job.traceback(self._process, self.end())
        if line == _BEGINS:
            self._block = line
            return b""
        return self._job.shown(line)

    def end(self) -> bytes:
        """What was held back."""
        block, self._block = self._block, b""
        return block


def _parted(block: bytes) -> tuple[bytes, bytes]:
    *stack, last = block.splitlines(keepends=True)
    return b"".join(stack), last
