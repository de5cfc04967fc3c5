"""Counters that wrap: an engine whose numbers begin shortly before 2^32 passes the same tests.

A job of many days reaches that number: 2^32 all-reduces of 10 us take half a day.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.random_programs.test_random_programs import ENVIRON, WORKER
from native.test_native import BUILD_SECONDS, ENVIRONMENT, GROUP_SECONDS, _build, _check, _run
from support import run_lockstep

FIRST = 2**32 - 40
"""A ring has a few slots, so that no message of the first ring is beyond the wrap."""
GROUPS = ("collectives", "mailboxes", "schedules")
"""Groups that go by results: others count messages, or number them themselves."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * BUILD_SECONDS)]


@pytest.fixture(scope="module")
def wrapping() -> Path:
    """The tests, linked with such an engine; the engine is beside their folder."""
    define = f"-DLOCKSTEP_FIRST_NUMBER={FIRST}u"
    return _build("native-tests-wrapping", CMAKE_CXX_FLAGS=define)


@pytest.mark.parametrize("group", GROUPS)
def test_native(wrapping: Path, group: str) -> None:
    _check(_run([str(wrapping), group], GROUP_SECONDS[""], **ENVIRONMENT[""]))


@pytest.mark.parametrize(("n", "d"), [(2, 2), (4, 1)])
def test_every_step_of_random_programs_is_exact(wrapping: Path, n: int, d: int) -> None:
    engine = wrapping.parents[1] / "liblockstep.so"
    result = run_lockstep(
        ["--collective-timeout", "60"],
        WORKER,
        n=n,
        d=d,
        env=ENVIRON | {"LOCKSTEP_ENGINE": str(engine), "PATH": os.environ["PATH"]},
        program_args=["--first", "7000", "--count", "12", "--repeat", "32"],
        timeout=300,
    )
    assert result.stdout.count(" 0 wrong") == n, result
