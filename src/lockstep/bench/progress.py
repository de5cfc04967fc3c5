"""Progress on stderr: a bar on a terminal, else one line for each case."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from lockstep._words import format_seconds, format_size
from lockstep.bench.cases import Case
from lockstep.bench.runner import CaseResult
from lockstep.bench.stats import Spread


def case_line(result: CaseResult) -> str:
    """One finished case in one line."""
    parts = []
    for name, measurement in result.by_implementation.items():
        samples = [sample for block in measurement.blocks for sample in block]
        if measurement.status == "ok" and samples:
            parts.append(f"{name} {format_seconds(Spread.of(samples).median)}")
        else:
            parts.append(f"{name} {measurement.status}: {measurement.reason}")
    return f"{result.case.op} {format_size(result.case.bytes)}: {', '.join(parts)}"


def _bar(stream: TextIO) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )


class Reporter:
    """Shows how far the run is; a context manager."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._done = 0
        self._bar = _bar(stream) if stream.isatty() else None
        self._task = self._bar.add_task("starting", total=total) if self._bar else TaskID(0)

    def note(self, text: str) -> None:
        """Something that happens before the first case."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        else:
            print(text, file=self._stream, flush=True)

    def begin(self, case: Case) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"{case.op} {format_size(case.bytes)}")

    def end(self, result: CaseResult) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        else:
            line = f"[{self._done}/{self._total}] {case_line(result)}"
            print(line, file=self._stream, flush=True)

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
