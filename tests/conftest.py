"""For every test: lockstep is imported before any test module can import jax."""

import signal
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import lockstep  # noqa: F401

# A shell that starts the tests in the background ignores these, and lockstep keeps to that.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )

hypothesis.settings.register_profile("quick", max_examples=25, deadline=None)  # in `make test`

LONG = ("native", "faults", "linalg", "sync", "testing", "worker")
"""Folders with long files. They come first, so that no worker of xdist is left alone with one."""


TESTS = Path(__file__).parent

# The scripts, last: `wheel` is not to be the script of this name.
sys.path.append(str(TESTS.parent / "scripts"))


def pytest_configure(config: pytest.Config) -> None:
    """Each worker of xdist begins to collect at another folder.

    The first that imports a file compiles it, and the others load that. Where all begin at the same
    one, each of them compiles every file.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    found = sorted(path for path in TESTS.iterdir() if _has_tests(path))
    first = int(worker["workerid"].removeprefix("gw")) * len(found) // worker["workercount"]
    config.args = [str(path) for path in found[first:] + found[:first]]


def _has_tests(path: Path) -> bool:
    return path.match("test_*.py") or (path.is_dir() and any(path.rglob("test_*.py")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[bool, Path]:
        path = item.path.relative_to(TESTS)
        return path.parts[0] not in LONG, path

    items.sort(key=place)  # the same order in every worker
