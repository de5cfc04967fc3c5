"""The comparison with other tools has the numbers of the tables that it links to."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES = (DOCS / "performance.md").read_text()
TEXT = " ".join((DOCS / "right-for-me.md").read_text().split())


def cells(first: str, columns: int) -> list[list[str]]:
    """The last cells of each row of the table whose header begins so."""
    rows = TABLES[TABLES.index(f"\n| {first} ") :].split("\n\n")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in row.split("|")[-1 - columns : -1]] for row in rows]


def span(numbers: list[str]) -> str:
    return f"{min(numbers, key=float)} to {max(numbers, key=float)}"


def test_between_hosts() -> None:
    *rows, means = (row[:3] for row in cells("TLS / no encryption", 5))
    with_tls, without = zip(*(cell.split(" / ") for cell in means), strict=True)
    assert f"{span([*with_tls])} times as fast as gloo with TLS and {span([*without])}" in TEXT
    below = [n for row in rows for cell in row for n in re.findall(r"\*\*([\d.]+)\*\*", cell)]
    assert f"gloo took {span(below)} of our time between hosts with TLS" in TEXT


def test_on_a_slow_link() -> None:
    ratios = [cell for row in cells("1 Gbit/s, TLS", 6) for cell in (row[2], row[5])]
    assert f"on a link of 1 Gbit/s {span(ratios)} times" in TEXT


def test_beside_one_process() -> None:
    ratios = [[float(c.split()[0]) for c in row] for row in cells("times faster than XLA", 4)]
    small, large = (
        f"{statistics.geometric_mean([x for row in ratios for x in row[part]]):.3g} times"
        for part in (slice(2), slice(2, 4))
    )
    one_process = "as fast as one process with many devices up to 64 KiB"
    assert f"{small} {one_process} and {large} from 1 MiB on" in TEXT
