"""pytest inside a job: ``lockstep run -n 2 --auto-init -m pytest tests/``.

Every rank runs the whole suite. Only rank 0 prints; at the end it compares the verdicts of all
ranks, which the ranks leave in the directory of the run. Files that pytest writes get the rank in
their name. Tests with the mark ``lockstep`` run in place where the job has their layout.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep import _config, _run_files
from lockstep._words import grouped
from lockstep.testing import merge
from pytest_lockstep import layouts

FILE = "pytest.json"
WAIT_SECONDS = 30.0
"""Seconds that rank 0 waits for the verdicts of ranks that are still at work."""
MAX_LINES = 20
Verdicts = Mapping[str, str]


class InJob:
    """The plug-in of one rank."""

    def __init__(self, config: pytest.Config) -> None:
        self._job = _config.current()
        self._rank, self._size = self._job.process_id or 0, self._job.num_processes or 1
        self._verdicts: dict[str, str] = {}
        if getattr(config.option, "xmlpath", None):
            path = Path(config.option.xmlpath)
            config.option.xmlpath = str(
                path.with_name(f"{path.stem}.rank{self._rank}{path.suffix}")
            )

    def pytest_plugin_registered(self, plugin: Any) -> None:
        if self._rank > 0 and type(plugin).__name__ == "TerminalReporter":
            # The report of another rank would be that of rank 0 again.
            plugin._tw._file = open(os.devnull, "w")  # noqa: SIM115
            plugin._tw.hasmarkup = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self._verdicts.get(report.nodeid)
        if report.failed:
            self._verdicts[report.nodeid] = f"failed: {_first_line(report)}"
        elif before is None or before == "passed":
            if report.when == "call" or report.skipped:
                self._verdicts[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._verdicts[report.nodeid] = f"failed: {_first_line(report)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("lockstep") is None:
            return
        layout = layouts.of_item(item)
        if layout.n != self._size:
            pytest.skip(f"the test is for {layout.n} processes, and this job has {self._size}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        path = Path(self._job.own_dir or "", FILE)
        with contextlib.suppress(OSError):
            _run_files.write_whole(path, json.dumps(self._verdicts).encode())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._rank > 0:
            return
        # The summary may come before the hook above.
        others = {rank: self._wait_for(rank) for rank in range(1, self._size)}
        terminalreporter.section(f"{self._size} ranks")
        for line in compared(self._verdicts, others):
            terminalreporter.write_line(line)

    def _wait_for(self, rank: int) -> Verdicts | None:
        deadline = time.monotonic() + WAIT_SECONDS
        path = Path(self._job.process_dir(rank) or "", FILE)
        while True:
            with contextlib.suppress(OSError, ValueError):
                return json.loads(path.read_text("utf-8"))
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)


def compared(first: Verdicts, others: Mapping[int, Verdicts | None]) -> list[str]:
    """The lines of the report: rank 0's count, then how each other rank differs from it."""
    lines = [f"rank 0: {counts(first)}"]
    by_text = grouped((tuple(_differences(first, own)), rank) for rank, own in others.items())
    for text, ranks in by_text.items():
        head = merge.named(ranks, len(others) + 1).rpartition(" of ")[0]
        lines += [f"{head}: {text[0]}", *(f"  {line}" for line in text[1:])]
    return lines


def counts(verdicts: Verdicts) -> str:
    """``2 failed, 10 passed``."""
    kinds = [verdict.partition(":")[0] for verdict in verdicts.values()]
    found = [f"{kinds.count(k)} {k}" for k in ("failed", "passed", "skipped") if k in kinds]
    return ", ".join(found) or "no tests"


def _differences(first: Verdicts, own: Verdicts | None) -> list[str]:
    if own is None:
        return [f"no verdicts within {WAIT_SECONDS:g} s after rank 0 ended: it hangs, or has died"]
    different = [node for node in {**first, **own} if first.get(node) != own.get(node)]
    if not different:
        return [f"{counts(own)}, the same on rank 0"]
    lines = [
        f"{node}: {own.get(node, 'not run')} (rank 0: {first.get(node, 'not run')})"
        for node in different[:MAX_LINES]
    ]
    more = len(different) - MAX_LINES
    return [f"{counts(own)}; differs from rank 0:", *lines] + (
        [f"and {more} more"] if more > 0 else []
    )


def _first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip().splitlines()[0] if text.strip() else ""
