"""The table as Markdown, and its place in docs/reference/versions.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from version_matrix.cells import Ran

BEGIN, END = "<!-- begin of what scripts/versions.py writes -->", "<!-- end -->"
Cells = Mapping[tuple[str, str], Mapping[str, Ran]]


def word(ran: Ran | None) -> str:
    if ran is None:
        return "not run"
    if ran.failures:
        return f"**{len(ran.failures)} of {ran.passed + len(ran.failures)} failed**"
    return f"ok ({ran.passed})" if ran.passed else "not run"


def render(cells: Cells, groups: Sequence[str], not_run: Sequence[str]) -> str:
    """A row for each Python and jax; below it what failed, and the Pythons that are missing."""
    head = ["Python", "jax", *groups]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for (python, jax), ran in cells.items():
        lines.append(f"| {' | '.join([python, jax, *(word(ran.get(g)) for g in groups)])} |")
    lines += [f"| {python} |  | {' | '.join('not run' for _ in groups)} |" for python in not_run]
    failures = [
        f"- Python {python}, jax {jax}, {group}: {text}"
        for (python, jax), ran in cells.items()
        for group, of_group in ran.items()
        for text in of_group.failures
    ]
    return "\n".join([*lines, *(["", "Failed:", "", *failures] if failures else [])])


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows in docs/reference/versions.md."""
    written = text[text.index(BEGIN) : text.index(END)]
    lines = re.findall(r"^\| (\d.*) \|$", written, re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def replace(text: str, written: str) -> str:
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    return f"{before}{BEGIN}\n\n{written}\n\n{after}"
