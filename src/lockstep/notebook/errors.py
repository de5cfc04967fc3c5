"""The error of a cell: the process that caused it first, the others in a line each. Pure."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Sequence

from lockstep._errors import LockstepError
from lockstep._jax_compat import texts
from lockstep._words import grouped, is_cut
from lockstep.notebook.fold import label

_ENGINES = re.compile(rf"^{texts.ENGINE_ERROR}")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_MAX_LINE = 160
RESTART = "%lockstep restart starts the processes again, without their variables."


class NotebookError(LockstepError):
    """What a cell or a ``%lockstep`` command failed with; a notebook shows its text, no stack."""

    def _render_traceback_(self) -> list[str]:
        return str(self).split("\n")


class CellError(NotebookError):
    """A cell failed on some processes. ``failures`` has them, the one that caused it first."""

    def __init__(self, summary: str, text: str, failures: Sequence[Failure] = ()) -> None:
        super().__init__(summary)
        self.failures = tuple(failures)
        self._text = text

    def _render_traceback_(self) -> list[str]:
        return self._text.split("\n")


@dataclasses.dataclass(frozen=True)
class Failure:
    """How one process ended a cell that it did not finish."""

    process: int
    kind: str
    """The name of the exception's class."""
    message: str
    traceback: str = ""
    """The traceback as IPython shows it."""

    @property
    def is_interrupt(self) -> bool:
        return self.kind == "KeyboardInterrupt"

    @property
    def is_engines(self) -> bool:
        """Whether the engine raised it, because of another process or of all together."""
        return bool(_ENGINES.match(self.message))

    @property
    def summary(self) -> str:
        """One line."""
        head = _ENGINES.sub("lockstep: ", self.message).partition("\n")[0]
        line = f"{self.kind}: {head}" if head else self.kind
        return textwrap.shorten(line, _MAX_LINE, placeholder=" ...")


def cell_error(
    failures: Sequence[Failure], culprits: Sequence[int] = (), note: str = "", report: str = ""
) -> CellError:
    """The error of a cell. ``failures`` are in order of time; ``culprits`` as the records name
    them; ``report`` is theirs, for an engine's error that has no room for it; ``note`` is the last
    line: what to do."""
    ordered = sorted(failures, key=lambda failure: _rank(failure, culprits))
    first = ordered[0]
    alike = [f for f in ordered if (f.kind, f.message) == (first.kind, first.message)]
    if not first.is_engines and not first.is_interrupt:
        alike = [f for f in alike if _plain(f.traceback) == _plain(first.traceback)]
    where = label([f.process for f in alike])
    lines = [f"{where} {first.summary}" if first.is_interrupt else f"{where} failed:"]
    if not first.is_interrupt:
        lines.append(first.traceback or first.summary)
    if first.is_engines and is_cut(first.message) and report:
        lines += report.split("\n")
    others = grouped((f.summary, f.process) for f in ordered if f not in alike)
    lines += [f"{label(group)} {summary}" for summary, group in others.items()]
    lines += [note] if note else []
    return CellError(f"{where} {first.summary}", "\n".join(lines), ordered)


def _rank(failure: Failure, culprits: Sequence[int]) -> tuple[int, bool]:
    kind = 2 if failure.is_interrupt else 1 if failure.is_engines else 0
    return kind, failure.process not in culprits


def _plain(text: str) -> str:
    return _ANSI.sub("", text)
