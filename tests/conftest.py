"""For every test: lockstep is imported before any test module can import jax."""

import signal
from pathlib import Path

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

LONG = ("native", "faults", "linalg")
"""Folders with long files. They come first, so that no worker of xdist is left alone with one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(tests).parts[0] not in LONG)
