"""A pytest session in each process of a pool: it runs single tests on request.

The session is a usual one, made from the options of the session that asks, without its terminal:
fixtures, parameters, conftest files, assertion rewriting and other plug-ins work as usual. Test
files are collected when a test of theirs is requested for the first time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pdb
import warnings
from pathlib import Path
from typing import Any

import pytest

LOCK = "pdb.lock"


@dataclasses.dataclass(frozen=True)
class Spec:
    """How the sessions of the processes are made."""

    options: dict[str, Any]
    args: list[str]
    basetemp: str
    """Each process has its own folder below this one."""
    coverage: dict[str, Any] | None = None
    """Arguments of `coverage.Coverage`; None: nothing is measured."""
    tty: str | None = None
    """The terminal on which the first process that fails offers a debugger."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A test to run, and what comes after it in these processes."""

    nodeid: str
    path: str
    next_nodeid: str
    next_path: str


class TestFailed(Exception):
    """A test has failed in this process: the pool ends the waits of the others for it."""

    __test__ = False  # no class of tests, to pytest

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        super().__init__(reports)
        self.reports = reports

    def __str__(self) -> str:
        return "the test failed"


_session: _RankSession | None = None


def prepare(spec: Spec, path: str) -> None:
    """Starts the session of this process if there is none, and collects the tests of a file."""
    global _session
    if _session is None:
        _session = _RankSession(spec)
    _session.collect(path)


def run(request: Request) -> list[dict[str, Any]]:
    """The reports of one test in this process, whose file is collected.

    Raises `TestFailed` with them if the test has failed.
    """
    assert _session is not None
    reports = _session.run(request)
    if any(report["outcome"] == "failed" for report in reports if "outcome" in report):
        raise TestFailed(reports)
    return reports


def finish() -> None:
    """Ends the session: fixtures of all scopes are torn down."""
    global _session
    ended, _session = _session, None
    if ended:
        ended.finish()


class _RankSession:
    def __init__(self, spec: Spec) -> None:
        import jax

        rank = jax.process_index()
        self._tty = spec.tty
        self._reports: list[dict[str, Any]] = []
        self._coverage = _coverage(spec.coverage)
        options = {**spec.options, "basetemp": os.path.join(spec.basetemp, f"rank-{rank}")}
        self._config = pytest.Config.fromdictargs(options, list(spec.args))
        self._config.pluginmanager.register(self, "lockstep-rank")
        self._session = pytest.Session.from_config(self._config)
        self._config._do_configure()
        for name in ("lfplugin", "nfplugin", "stepwiseplugin"):
            if self._config.pluginmanager.hasplugin(name):
                self._config.pluginmanager.unregister(name=name)
        self._config.hook.pytest_sessionstart(session=self._session)
        self._items: dict[str, pytest.Item] = {}
        self._problems: dict[str, list[dict[str, Any]]] = {}

    def run(self, request: Request) -> list[dict[str, Any]]:
        self._reports = []
        item = self._item(request)
        if item is None:
            return self._reports
        # Where the guess of the next test was wrong, what it has left would be an error.
        with contextlib.suppress(BaseException):
            self._session._setupstate.teardown_exact(item)
        hook = self._config.hook
        hook.pytest_runtest_protocol(item=item, nextitem=self._next(request))
        if self._coverage:
            self._coverage.save()
        return self._reports

    def finish(self) -> None:
        with contextlib.suppress(BaseException):
            self._session._setupstate.teardown_exact(None)
        self._config.hook.pytest_sessionfinish(session=self._session, exitstatus=0)
        self._config._ensure_unconfigure()
        if self._coverage:
            self._coverage.stop()
            self._coverage.save()

    def collect(self, path: str) -> None:
        """Collects the tests of a file; what is wrong with it is told with each test of it."""
        if path in self._problems:
            return
        self._reports = []
        for item in self._session.perform_collect([path]):
            self._items[item.nodeid] = item
        self._problems[path] = [found for found in self._reports if "problem" in found]

    def _item(self, request: Request) -> pytest.Item | None:
        """The test; None where it was not collected, which is reported."""
        found = self._items.get(request.nodeid)
        if found is None:
            missing = (
                f"{request.nodeid} is not there in this process: its file yields other tests here "
                "(parameters that differ between processes?)"
            )
            self._reports += self._problems.get(request.path) or [{"problem": missing}]
        return found

    def _next(self, request: Request) -> Any:
        """The node whose fixtures stay after the test; None: none stay."""
        if not request.next_nodeid:
            return None
        if request.next_path == request.path:
            return self._items.get(request.next_nodeid)
        return self._session  # fixtures of the session's scope, only

    # Hooks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The hook, which a terminal calls otherwise, fails a test whose subtests have failed.
        self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        found = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        assert found is not None
        self._reports.append(found)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._reports.append({"problem": str(report.longrepr)})

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        found = warning_message
        self._reports.append(
            {
                "warning": str(found.message),
                "category": found.category.__name__,
                "file": found.filename,
                "line": found.lineno,
                "nodeid": nodeid,
            }
        )

    def pytest_exception_interact(self, node: pytest.Item, call: Any, report: Any) -> None:
        if self._tty and isinstance(report, pytest.TestReport) and _is_first():
            _debug(self._tty, node, call.excinfo)


def _is_first() -> bool:
    """Whether no other process offers a debugger."""
    from lockstep import _config

    with contextlib.suppress(FileExistsError):
        path = Path(_config.current().run_dir or "") / LOCK
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    return False


def _debug(tty: str, node: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    import jax

    with open(tty) as read, open(tty, "w") as write:
        head = f"rank {jax.process_index()} of {jax.process_count()}: {node.nodeid}"
        write.write(f"\n{head}\n{excinfo.exconly()}\nthe other ranks wait\n")
        debugger = pdb.Pdb(stdin=read, stdout=write)
        debugger.prompt = f"(rank {jax.process_index()}) "
        debugger.reset()
        debugger.interaction(None, excinfo.tb)


def _coverage(arguments: dict[str, Any] | None) -> Any:
    if arguments is None:
        return None
    import coverage

    measured = coverage.Coverage(data_suffix=True, **arguments)
    # Coverage is saved after each test, and some tests execute nothing that is measured.
    measured.set_option("run:disable_warnings", ["no-data-collected"])
    measured.start()
    return measured
