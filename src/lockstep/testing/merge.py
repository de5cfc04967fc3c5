"""One verdict of what a test did in several processes. Pure.

A test fails if it has failed in some rank, is an expected failure if it is in some rank, is skipped
if all ranks skip it, and has passed otherwise. Failures with the same text are shown once.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

from lockstep._jax_compat import texts
from lockstep._words import grouped, ranges
from lockstep.pool import outcome as pool_outcome

PHASES = ("setup", "call", "teardown")
_ADDRESS = re.compile(r"0x[0-9a-f]+|\bpid \d+")
_XPASS = "[XPASS(strict)]"

ByRank = Mapping[int, pytest.TestReport]


@dataclasses.dataclass
class Times:
    """When a test was requested, when its processes were ready, and when it was over; seconds
    since the epoch."""

    began: float
    ready: float
    ended: float


def verdicts(
    item: pytest.Item,
    by_rank: Mapping[int, Sequence[pytest.TestReport]],
    size: int,
    problems: Mapping[int, str],
    times: Times,
) -> Iterator[pytest.TestReport]:
    """The reports of a test, from those of each rank: its phases, and its subtests.

    ``problems``: what became of ranks that could not report.
    """
    found: dict[tuple[str, int, str], dict[int, pytest.TestReport]] = {}
    for rank, reports in by_rank.items():
        seen: dict[tuple[str, str], int] = {}
        for report in reports:
            key = report.when or "call", _subtest(report)
            seen[key] = seen.get(key, 0) + 1
            # Reports without a subtest, of plug-ins that run a test again: the last one counts.
            number = seen[key] if key[1] else 0
            found.setdefault((key[0], number, key[1]), {})[rank] = report
    for phase in PHASES:
        for (when, _, name), reports in found.items():
            if when == phase and name:
                yield _as_subtest(merged(item, phase, reports, size), reports)
        reports, own = found.get((phase, 0, ""), {}), problems if phase == "call" else {}
        if reports or own:
            yield timed(merged(item, phase, reports, size, own), times, bool(own))


def _subtest(report: pytest.TestReport) -> str:
    """Which subtest a report is about; "": the test itself. pytest has them from 9.0 on, and
    for earlier versions pytest-subtests."""
    context: Any = getattr(report, "context", None)
    return "" if context is None else f"{context.msg!r} {context.kwargs!r}"


def _as_subtest(report: pytest.TestReport, reports: ByRank) -> pytest.TestReport:
    found = copy.copy(next(iter(reports.values())))
    for name in ("outcome", "longrepr", "sections", "duration", "start", "stop"):
        setattr(found, name, getattr(report, name))
    return found


def merged(
    item: pytest.Item,
    phase: str,
    reports: ByRank,
    size: int,
    problems: Mapping[int, str] | None = None,
) -> pytest.TestReport:
    """The report of one phase from those of ``size`` ranks; some may have none.

    ``problems``: what became of ranks that could not report.
    """
    failed = {rank: r for rank, r in reports.items() if r.failed}
    marked = [r for r in reports.values() if hasattr(r, "wasxfail")]
    expected = [r for r in marked if r.skipped]
    if expected:  # a rank that passes where another fails as expected is no surprise
        failed = {rank: r for rank, r in failed.items() if not str(r.longrepr).startswith(_XPASS)}
    outcome: Any = "passed"
    longrepr: Any = None
    shown = {**{rank: r.longrepr for rank, r in failed.items()}, **(problems or {})}
    if shown:
        outcome, longrepr = "failed", failures(shown, size)
    elif expected:
        outcome, longrepr = "skipped", expected[0].longrepr
    elif reports and all(r.skipped for r in reports.values()):
        outcome, longrepr = "skipped", next(iter(reports.values())).longrepr
    found = pytest.TestReport(
        item.nodeid,
        item.location,
        dict.fromkeys(item.keywords, 1),
        outcome,
        longrepr,
        phase,  # pyright: ignore[reportArgumentType]
        sections=sections(reports, size),
        duration=max((r.duration for r in reports.values()), default=0.0),
        start=min((r.start for r in reports.values()), default=0.0),
        stop=max((r.stop for r in reports.values()), default=0.0),
        user_properties=_properties(reports.values()),
    )
    if not shown and (with_mark := expected or marked):
        found.wasxfail = with_mark[0].wasxfail  # pyright: ignore[reportAttributeAccessIssue]
    return found


def timed(report: pytest.TestReport, times: Times, is_stopped: bool) -> pytest.TestReport:
    """``report`` with the time that ranks have not measured: that of the start of the processes,
    and of a test that was stopped."""
    if report.when == "setup":
        report.start, report.duration = times.began, report.duration + times.ready - times.began
    elif is_stopped:
        report.start, report.stop = times.ready, times.ended
        report.duration = times.ended - times.ready
    return report


def failed_report(item: pytest.Item, longrepr: Any, times: Times) -> pytest.TestReport:
    """A report of what did not come from a test: a process has died, a deadline has passed."""
    return pytest.TestReport(
        item.nodeid,
        item.location,
        dict.fromkeys(item.keywords, 1),
        "failed",
        longrepr,
        "setup",
        start=times.began,
        stop=times.ended,
        duration=times.ended - times.began,
    )


def failures(by_rank: Mapping[int, Any], size: int) -> Any:
    """What to show of the failures of several ranks: equal ones once, consequences last and short.

    A value of ``by_rank`` is what pytest shows of a failure, or a text.
    """
    groups = grouped((_what(by_rank[rank]), rank) for rank in sorted(by_rank))
    ordered = sorted(groups.values(), key=lambda of: (_distance(by_rank[of[0]]), of))
    chain: list[Any] = []
    for ranks in ordered:
        own = _chain(by_rank[ranks[0]])
        if chain and _distance(by_rank[ranks[0]]) and own[-1][1] is not None:
            own = _chain(f"{own[-1][1].message}\n")
        if size > 1:
            chain.append((ReprTraceback([], None, style="long"), None, f"{named(ranks, size)}:"))
        chain += [*own[:-1], (own[-1][0], own[-1][1], None)]
    shown = ExceptionChainRepr(chain)
    shown.reprcrash = _summary(by_rank[ordered[0][0]], chain)
    return shown


def _what(longrepr: Any) -> str:
    """Equal for equal failures: the same message at the same line. Values of arguments may vary."""
    crash = getattr(longrepr, "reprcrash", None)
    text = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(longrepr)
    return _ADDRESS.sub("", text)


def _summary(first: Any, chain: Sequence[Any]) -> ReprFileLocation | None:
    """What pytest's summary says: the first group's failure."""
    if isinstance(first, str):
        return ReprFileLocation("", 0, first.strip().partition("\n")[0])
    return next((crash for _, crash, _ in chain if crash is not None), None)


def sections(reports: ByRank, size: int) -> list[tuple[str, str]]:
    """The captured output, by rank; equal output once."""
    groups = grouped(
        (section, rank) for rank in sorted(reports) for section in reports[rank].sections
    )
    if size == 1:
        return list(groups)
    titles = list(dict.fromkeys(title for title, _ in groups))
    ordered = sorted(groups.items(), key=lambda pair: (titles.index(pair[0][0]), pair[1]))
    return [(f"{title} ({named(ranks, size)})", text) for (title, text), ranks in ordered]


def named(ranks: Sequence[int], size: int) -> str:
    """``rank 1 of 4``, ``ranks 0-2 of 4``, ``ranks 0, 2 of 4``."""
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)} of {size}"


def _chain(longrepr: Any) -> list[Any]:
    if isinstance(longrepr, ExceptionChainRepr):
        return list(longrepr.chain)
    if isinstance(longrepr, ReprExceptionInfo):
        return [(longrepr.reprtraceback, longrepr.reprcrash, None)]
    entry = ReprEntryNative([f"{line}\n" for line in str(longrepr).splitlines()])
    return [(ReprTraceback([entry], None, style="native"), None, None)]


def _distance(longrepr: Any) -> int:
    """How far a failure is from the cause: 0 where the rank failed by itself, 1 where it was
    stopped, 2 where it waited for another one. The engine raises its errors in every rank."""
    text = str(longrepr)
    if pool_outcome.STUCK in text:
        return 1
    return 2 if texts.OF_THE_ENGINE in text or pool_outcome.WAITED in text else 0


def _properties(reports: Any) -> list[Any]:
    return list(dict.fromkeys(pair for report in reports for pair in report.user_properties))
