"""The watchdogs of two hosts, which answer each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.watchdog import remote
from watchdog.two_hosts import Job


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(remote, "TIMEOUT_SECONDS", 0.6)
    monkeypatch.setattr(remote, "_STACKS_TIMEOUT", 0.3)
    made = Job()
    for one in made.answers:
        one.start()
    yield made
    for one in made.answers:
        one.stop()
        assert not one.is_alive()
