"""Findings as lines for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lockstep._finding import OK, PROBLEM, STATUSES, WARNING, Finding, worst

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "lockstep.doctor/1"
COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "bold red"}
_STATUS_WIDTH = max(len(status) for status in STATUSES)
_NAME_WIDTH = 18


def document(areas: Sequence[tuple[str, Sequence[Finding]]]) -> dict[str, Any]:
    """The report that ``--json`` prints; docs/reference/doctor.md describes it."""
    return {
        "schema": SCHEMA,
        "status": worst(finding for _, findings in areas for finding in findings),
        "checks": [
            {"area": area, **dataclasses.asdict(finding)}
            for area, findings in areas
            for finding in findings
        ],
    }


def show_area(area: str, findings: Iterable[Finding], console: Console) -> None:
    """Prints one area: a line each, and under it the fix where there is one."""
    from rich.text import Text

    indent = 2 + _STATUS_WIDTH + 2 + _NAME_WIDTH + 1
    console.print(Text(area, style="bold"))
    for finding in findings:
        head = Text.assemble(
            "  ",
            (f"{finding.status:{_STATUS_WIDTH}}", COLOURS[finding.status]),
            f"  {finding.name:{_NAME_WIDTH}} ",
        )
        console.print(head, Text(finding.found), sep="", soft_wrap=True)
        if finding.fix:
            fix = (" " * indent, ("fix: ", COLOURS[finding.status]), finding.fix)
            # Never wrapped: a command that spans lines cannot be copied.
            console.print(Text.assemble(*fix), soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    counts = {status: sum(f.status == status for f in findings) for status in STATUSES}
    if counts[PROBLEM]:
        verdict = "fix the problems first"
    elif counts[WARNING]:
        verdict = "Lockstep works here"
    else:
        verdict = "everything is fine"
    parts = [f"{counts[OK]} ok"]
    for status in (WARNING, PROBLEM):
        plural = "" if counts[status] == 1 else "s"
        parts.append(f"{counts[status]} {status}{plural}")
    return f"{', '.join(parts)}: {verdict}"
