"""The pytest plug-in of Lockstep: ``@pytest.mark.lockstep(n=2, devices=4)``.

A package of its own, because pytest imports it in every session of an environment: it imports
neither `lockstep` nor jax before a test needs them, so sessions without such tests are left alone.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lockstep.testing.ranks import Ranks


def _terminal() -> str | None:
    try:
        return os.ttyname(0)
    except OSError:  # there is none, or it belongs to another mount namespace
        return None


TTY = _terminal()
"""The terminal, found before pytest captures descriptor 0; for ``--pdb``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("lockstep", "tests on several processes (lockstep)").addoption
    add(
        "--lockstep-n",
        metavar="N[,N]",
        help="numbers of processes for all tests with the mark lockstep, instead of their own",
    )
    add(
        "--lockstep-devices",
        metavar="D[,D]",
        help="CPU devices of each process for all tests with the mark lockstep, instead of theirs",
    )
    add(
        "--lockstep-collectives",
        metavar="NAME[,NAME]",
        help="lockstep, gloo or mpi, for all tests with the mark lockstep, instead of their own",
    )
    add(
        "--lockstep-preload",
        metavar="MODULES",
        help="import these modules (jax,scipy.linalg) once for all processes of a job, which are "
        "then forks, as with lockstep run --preload",
    )
    add(
        "--lockstep-timeout",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="how long a test with the mark lockstep may take if neither the mark nor "
        "pytest-timeout says; 0: forever; default: 300",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "lockstep(n=2, devices=4, collectives=None, timeout=None): run the test on n processes of "
        "one job, with so many CPU devices each; n, devices and collectives may be lists",
    )
    if getattr(config.option, "lockstep_is_rank", False):
        return
    if os.environ.get("LOCKSTEP_RUN_DIR") and os.environ.get("LOCKSTEP_PROCESS_ID"):
        from lockstep.testing import in_job

        config.pluginmanager.register(in_job.InJob(config), "lockstep-job")
    elif not config.getoption("collectonly") and not _is_controller_of_xdist(config):
        config.pluginmanager.register(_Starter(), "lockstep-starter")


def _is_controller_of_xdist(config: pytest.Config) -> bool:
    return getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")


class _Starter:
    """Brings in the controller at the first test with the mark."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if item.get_closest_marker("lockstep") is None:
            return None
        from pytest_lockstep.importing import import_lockstep

        import_lockstep()
        from lockstep.testing.controller import Controller

        manager = item.config.pluginmanager
        controller: Any = manager.getplugin("lockstep-controller")
        if controller is None:
            controller = Controller(item.config, TTY)
            manager.register(controller, "lockstep-controller")
        controller.run(item, nextitem)
        return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> None:
    """Ends the traceback of an error of Lockstep at the line of the test that called it."""
    errors: Any = sys.modules.get("lockstep._errors")
    found = call.excinfo
    if found is None or errors is None or not isinstance(found.value, errors.LockstepError):
        return
    for entry in reversed(found.traceback):
        module = entry.frame.f_globals.get("__name__", "")
        # A context manager as a decorator is called in a frame of contextlib.
        if not module.startswith("lockstep.") and module != "contextlib":
            break
        entry.frame.f_locals["__tracebackhide__"] = True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (mark := metafunc.definition.get_closest_marker("lockstep")) is None:
        return
    from pytest_lockstep import layouts

    several, name = layouts.of_mark(mark, metafunc.config), layouts.PARAMETER
    if len(several) > 1 or name in metafunc.fixturenames:
        if name not in metafunc.fixturenames:
            metafunc.fixturenames.append(name)
        metafunc.parametrize(name, several, ids=[layouts.name(each) for each in several])


@pytest.fixture
def lockstep(request: pytest.FixtureRequest) -> Ranks:
    """The place of this process in its job: rank, size, devices, assert_same, barrier."""
    from pytest_lockstep.importing import import_lockstep

    import_lockstep()
    from lockstep.testing.ranks import Ranks

    return Ranks(request.node.nodeid)


@pytest.fixture
def lockstep_layout(request: pytest.FixtureRequest) -> Any:
    """The processes and devices of a test with the mark ``lockstep``."""
    if hasattr(request, "param"):
        return request.param
    if request.node.get_closest_marker("lockstep") is None:
        pytest.fail("the fixture lockstep_layout needs the mark lockstep on its test", False)
    from pytest_lockstep import layouts

    return layouts.of_item(request.node)
