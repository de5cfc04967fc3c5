"""Judges what a job did after each fault, by what its launcher said. Pure."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from soak import known
from soak.faults import KINDS

_ATTEMPT = re.compile(r"^lockstep: attempt \d+ starts.*$", re.MULTILINE)
_ENDS = re.compile(r"ends after (\d+) steps with ((?:\d+ ?)+)$", re.MULTILINE)
_FAILED = re.compile(r"\bfailed\b.* of | of .*\bfailed\b|\bwas killed by SIGABRT\b")


class Struck(NamedTuple):
    """A fault that was planted."""

    kind: str
    host: str
    process: int | None
    """Of that host, at that moment."""

    @property
    def causes(self) -> list[str]:
        values = {"host": self.host, "process": self.process}
        return [pattern.format(**values) for pattern in KINDS[self.kind].causes]


class Verdict(NamedTuple):
    """How a strike ended."""

    what: str
    """``survived``, ``named right``, ``named wrong``, ``ended, named right``, ..."""
    headline: str
    seconds: float | None = None
    """From the strike to the first line of the failure."""


def headlines(text: str) -> list[str]:
    """The first line about each attempt that has failed."""
    found = []
    for block in _ATTEMPT.split(text):
        lines = [line for line in block.splitlines() if line.startswith("lockstep: ")]
        # Of two processes that abort at once no line says which of them failed first.
        found += [line for line in lines if _FAILED.search(line)][:1]
    return found


def judge(said: str, struck: Sequence[Struck], has_ended: bool, status: int = 0) -> Verdict:
    """The verdict on what was said from a strike on, until the job went on or ended."""
    lines = headlines(said)
    ended = "ended, " if has_ended else ""
    if not lines:
        refused = re.search(r"^lockstep: not started again: .*", said, re.MULTILINE)
        if not has_ended:
            is_right = all(KINDS[each.kind].may_survive for each in struck)
            return Verdict("survived" if is_right else "unnoticed", "")
        return Verdict(f"{ended}unnamed (status {status})", refused[0] if refused else said[-500:])
    causes = [cause for each in struck for cause in each.causes]
    wrong = [line for line in lines if not any(re.search(cause, line) for cause in causes)]
    return Verdict(f"{ended}named {'wrong' if wrong else 'right'}", (wrong or lines)[0])


def wrong_numbers(out: str, processes: Iterable[int]) -> list[str]:
    """What is wrong with the numbers of a job that ended well on so many processes."""
    wrong = [line for line in out.splitlines() if "WRONG" in line]
    ends = [(int(steps), tuple(map(int, state.split()))) for steps, state in _ENDS.findall(out)]
    if len(ends) not in set(processes):
        wrong.append(f"{len(ends)} processes have said their numbers")
    if len(set(ends)) > 1:
        wrong.append("the processes have ended with different numbers")
    wrong += [f"after {steps} steps" for steps, state in ends if state != known.after(steps)]
    return wrong


class Table:
    """Counts verdicts by the kinds of faults that came alone, or together."""

    def __init__(self) -> None:
        self.rows: dict[str, collections.Counter[str]] = {}
        self.seconds: dict[str, list[float]] = {}

    def add(self, struck: Sequence[Struck], verdict: Verdict) -> None:
        kind = struck[0].kind if len(struck) == 1 else "two at once"
        self.rows.setdefault(kind, collections.Counter())[verdict.what.split(" (")[0]] += 1
        if verdict.seconds is not None:
            self.seconds.setdefault(kind, []).append(verdict.seconds)

    def __str__(self) -> str:
        lines = ["| fault | strikes | named right | named wrong | survived | seconds |"]
        lines.append("|---|---|---|---|---|---|")
        for kind in [*KINDS, "two at once"]:
            if row := self.rows.get(kind):
                right = sum(n for what, n in row.items() if what.endswith("right"))
                survived = row["survived"]
                wrong = row.total() - right - survived
                took = sorted(self.seconds.get(kind, []))
                times = f"{took[0]:.1f} to {took[-1]:.1f}" if took else ""
                lines.append(
                    f"| {kind} | {row.total()} | {right} | {wrong} | {survived} | {times} |"
                )
        return "\n".join(lines)
