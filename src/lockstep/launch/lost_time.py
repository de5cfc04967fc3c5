"""What restarts have cost: the time between attempts, by its cause. Pure.

The time from a fault to the start of the next attempt has three parts: until the launcher noticed
it (a silent host takes `lockstep.hosts.lease.SILENCE_SECONDS`), until all processes had ended
and the failure was reported, and until hosts and ports of the next attempt were ready. What comes
after that is inside of the program: its start, its compilation, and the work since its last
checkpoint, which it does again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._words import counted, grouped
from lockstep.processes.job_spec import HostChanges

SCHEMA = "lockstep.restarts/1"
HOST_LOST = "host lost"
PROCESS_FAILED = "process failed"
MORE_HOSTS = "more hosts"
"""The job has ended to start again on more hosts."""
_PARTS = ("noticed", "ended", "prepared")
_MAX_STEPS = 3
"""So many attempts are shown with the step from which they continued."""


@dataclasses.dataclass(frozen=True)
class Restart:
    """One restart; all times are in seconds."""

    attempt: int
    """The number of the attempt that has ended."""
    cause: str
    noticed: float
    ended: float
    prepared: float
    hosts: HostChanges | None = None
    """None: the job runs on one host."""
    continues_from: int | None = None
    """The step of the checkpoint that the next attempt has restored, if its program has told."""

    @property
    def seconds(self) -> float:
        """From the fault to the start of the next attempt."""
        return self.noticed + self.ended + self.prepared

    @property
    def words(self) -> str:
        """The line for the user at the start of the next attempt."""
        since = "the request" if self.cause == MORE_HOSTS else "the failure"
        parts = [
            f"noticed after {_shown(self.noticed)}" if self.noticed >= 0.1 else "",
            f"ended after {_shown(self.ended)}",
            f"prepared in {_shown(self.prepared)}",
        ]
        where = f" on {self.hosts.in_use} of {self.hosts.seats} hosts" if self.hosts else ""
        return (
            f"attempt {self.attempt + 1} starts{where}, {_shown(self.seconds)} after "
            f"{since}: {', '.join(filter(None, parts))}"
        )


def table(restarts: Sequence[Restart], seconds: float) -> str:
    """The lost time of a run of ``seconds``, by cause; "" without a restart."""
    if not restarts:
        return ""
    rows: list[tuple[str, ...]] = [("cause", "restarts", *_PARTS, "in all")]
    for cause, own in _by_cause(restarts).items():
        sums = [sum(getattr(each, part) for each in own) for part in _PARTS]
        rows.append((cause, str(len(own)), *map(_shown, [*sums, sum(sums)])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([f"  {row[0]:{widths[0]}}", *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    lost = _shown(sum(each.seconds for each in restarts))
    head = f"{lost} of {_shown(seconds)} lost in {counted(len(restarts), 'restart')}:"
    if found := steps([dataclasses.asdict(each) for each in restarts]):
        lines.append(f"  continued from a checkpoint: {found}")
    return "\n".join([head, *lines])


def steps(restarts: Sequence[Mapping[str, Any]]) -> str:
    """From which steps the last attempts have continued; "": no program has told."""
    told = [
        f"attempt {each['attempt'] + 1} from step {step}"
        for each in restarts
        if (step := each.get("continues_from")) is not None
    ]
    return ", ".join([*["..."] * (len(told) > _MAX_STEPS), *told[-_MAX_STEPS:]])


def values(restarts: Sequence[Restart], seconds: float) -> dict[str, Any]:
    """The same, and each restart, as JSON has it."""
    return {
        "schema": SCHEMA,
        "seconds": round(seconds, 3),
        "lost_seconds": round(sum(each.seconds for each in restarts), 3),
        "by_cause": {
            cause: {
                "restarts": len(own),
                "lost_seconds": round(sum(each.seconds for each in own), 3),
            }
            for cause, own in _by_cause(restarts).items()
        },
        "restarts": [_rounded(dataclasses.asdict(each)) for each in restarts],
    }


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _by_cause(restarts: Sequence[Restart]) -> dict[str, list[Restart]]:
    return grouped((each.cause, each) for each in restarts)


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    return found | {part: round(found[part], 3) for part in _PARTS}
