"""Runs tests with the mark ``lockstep`` in warm pools, and reports one verdict for each.

The session that the user has started collects the tests and reports them. Each pool has a process
for each rank, with a pytest session of its own (`remote`); fixtures are evaluated there.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import shlex
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lockstep._errors import LockstepError
from lockstep._words import is_cut
from lockstep.pool import outcome
from lockstep.pool.outcome import Kind, Outcome
from lockstep.pool.pool import Pool
from lockstep.testing import merge, rank_options, remote
from pytest_lockstep import layouts
from pytest_lockstep.layouts import Layout

MAX_POOLS = 3
"""Pools that are kept warm; each process has about 200 MB."""
PREPARE_SECONDS = 300.0
"""Seconds for the ranks to import conftest files and a file of tests."""
FINISH_SECONDS = 60.0
"""Seconds for the fixtures of modules and sessions to be torn down."""
_WHOLE_REPORT = "What the processes did"
"""The title of a section of a failed test, where the error has no room for all of it."""


class Controller:
    """The pools of a session, by layout."""

    def __init__(self, config: pytest.Config, tty: str | None) -> None:
        self._config = config
        self._pools: dict[Layout, Pool] = {}
        self._specs: dict[Layout, remote.Spec] = {}
        self._prepared: dict[Layout, tuple[list[int], set[str]]] = {}
        """The processes of a layout, and the files that they have collected."""
        self._pdb = bool(config.getoption("usepdb"))
        if self._pdb and tty is None:
            raise pytest.UsageError(
                "--pdb with pytest.mark.lockstep needs a terminal as standard input, and no "
                "processes of pytest-xdist: a rank opens the terminal by itself"
            )
        self._tty = tty if self._pdb else None

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Runs and reports one test."""
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            hook.pytest_runtest_logreport(report=report)
        self._tear_down(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _tear_down(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Ends the fixtures of this session that tests without the mark have left for this one."""
        state = item.session._setupstate
        call = pytest.CallInfo.from_call(
            lambda: state.teardown_exact(nextitem),
            "teardown",
            reraise=(pytest.exit.Exception, KeyboardInterrupt),
        )
        if call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Tears down the fixtures of all pools, and ends the processes."""
        while self._pools:
            self._end(next(iter(self._pools)))

    # One test

    def _reports(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[pytest.TestReport]:
        times = merge.Times(*[time.time()] * 3)
        try:
            layout = layouts.of_item(item)
            outcomes, diagnosis = self._run(layout, item, nextitem, times)
        except (LockstepError, pytest.Collector.CollectError, pytest.fail.Exception) as error:
            text = f"{type(error).__name__}: {error}"
            times.ended = time.time()
            yield merge.failed_report(item, text, times)
            return
        times.ended = time.time()
        by_rank: dict[int, list[pytest.TestReport]] = {}
        problems: dict[int, str] = {}
        for each in outcomes:
            by_rank[each.rank] = self._read(each, outcomes, problems)
        for report in merge.verdicts(item, by_rank, layout.n, problems, times):
            if report.failed and is_cut(report.longreprtext):
                report.sections.append((_WHOLE_REPORT, diagnosis))
            yield report

    def _run(
        self, layout: Layout, item: pytest.Item, nextitem: pytest.Item | None, times: merge.Times
    ) -> tuple[list[Outcome], str]:
        pool = self._pool(layout)
        follows = _next_of(layout, item, nextitem)
        request = remote.Request(
            item.nodeid,
            str(item.path),
            follows.nodeid if follows else "",
            str(follows.path) if follows else "",
        )
        try:
            if failed := self._prepare(layout, pool, str(item.path)):
                return failed, ""
            times.ready = time.time()
            return pool.outcomes(
                remote.run,
                (request,),
                timeout=None if self._pdb else rank_options.timeout_of(item),
                patient=self._pdb,
            )
        except BaseException:  # Ctrl-C, or the alarm of pytest-timeout
            self._pools.pop(layout).close(at_once=True)
            raise

    def _prepare(self, layout: Layout, pool: Pool, path: str) -> list[Outcome]:
        """Has the ranks collect a file; the outcomes where that has failed."""
        pids, paths = self._prepared.get(layout, ([], set()))
        if pids and pids == pool.pids and path in paths:
            return []
        outcomes, _ = pool.outcomes(
            remote.prepare, (self._spec(layout), path), timeout=PREPARE_SECONDS
        )
        failed = [o for o in outcomes if o.kind is not Kind.RETURNED]
        if not failed:
            known = paths if pids == pool.pids else set()
            self._prepared[layout] = (pool.pids, {*known, path})
        return failed

    def _read(
        self, each: Outcome, outcomes: list[Outcome], problems: dict[int, str]
    ) -> list[pytest.TestReport]:
        """The reports of one rank; adds to ``problems`` why there are none."""
        found: list[dict[str, Any]] = []
        reports: list[pytest.TestReport] = []
        if each.kind is Kind.RETURNED:
            found = each.value
        elif isinstance(each.value, remote.TestFailed):
            found = each.value.reports
        else:
            text = outcome.described(each, outcomes)
            # What was raised outside of a test, in a conftest.py say, has pytest's frames first.
            problems[each.rank] = text if each.kind is Kind.RAISED else _without_pytest(text)
        for values in found:
            if "problem" in values:
                problems[each.rank] = values["problem"]
            elif "warning" in values:
                if each.rank == 0:
                    self._warn(values)
            else:
                hook = self._config.hook
                reports.append(
                    hook.pytest_report_from_serializable(config=self._config, data=values)
                )
        return reports

    def _warn(self, values: Mapping[str, Any]) -> None:
        category = getattr(builtins, values["category"], None) or type(
            values["category"], (UserWarning,), {}
        )
        message = warnings.WarningMessage(
            values["warning"], category, values["file"], values["line"]
        )
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": message,
                "nodeid": values["nodeid"],
                "when": "runtest",
                "location": None,
            }
        )

    # Pools

    def _pool(self, layout: Layout) -> Pool:
        if layout in self._pools:
            self._pools[layout] = self._pools.pop(layout)  # the last used is the last
            return self._pools[layout]
        while len(self._pools) >= MAX_POOLS:
            self._end(next(iter(self._pools)))
        env = {}
        if self._pdb:  # the others wait while a person looks
            env = {"LOCKSTEP_COLLECTIVE_TIMEOUT": "0", "LOCKSTEP_STALL_WARNING": "0"}
        modules = self._config.getoption("lockstep_preload")
        # The sessions of the ranks are forks that find pytest imported as well.
        preload = f"--preload {shlex.quote(f'{modules},{remote.__name__}')}" if modules else ""
        self._pools[layout] = Pool(
            layout.n,
            layout.devices,
            collectives=layout.collectives,
            env=env,
            options=preload,
        )
        return self._pools[layout]

    def _end(self, layout: Layout) -> None:
        pool = self._pools.pop(layout)
        with contextlib.suppress(Exception):
            if pool.pids:
                pool.outcomes(remote.finish, timeout=FINISH_SECONDS)
        pool.close()

    def _spec(self, layout: Layout) -> remote.Spec:
        if layout not in self._specs:
            factory = self._config._tmp_path_factory  # pyright: ignore[reportAttributeAccessIssue]
            folder = factory.mktemp(f"lockstep-{layouts.name(layout)}-", numbered=True)
            self._specs[layout] = remote.Spec(
                rank_options.of_session(self._config, random.getrandbits(32)),
                list(self._config.args),
                str(folder),
                rank_options.coverage_of(self._config),
                self._tty,
            )
        return self._specs[layout]


def _without_pytest(text: str) -> str:
    """The stacks of a process without the frames below the test."""
    lines = text.splitlines()
    below = (i for i, line in enumerate(lines) if f"{os.sep}_pytest{os.sep}" in line)
    return "\n".join(lines[: next(below, len(lines))])


def _next_of(layout: Layout, item: pytest.Item, nextitem: pytest.Item | None) -> pytest.Item | None:
    """The next test in this layout. A guess, if another test comes before it."""
    if nextitem is not None and _has_layout(nextitem, layout):
        return nextitem
    items = item.session.items
    rest = items[items.index(item) + 1 :] if item in items else []
    return next((i for i in rest if _has_layout(i, layout)), None)


def _has_layout(item: pytest.Item, layout: Layout) -> bool:
    if item.get_closest_marker("lockstep") is None:
        return False
    with contextlib.suppress(pytest.Collector.CollectError):  # an error of its own
        return layouts.of_item(item) == layout
    return False
