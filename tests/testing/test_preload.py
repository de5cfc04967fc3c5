"""``--lockstep-preload``, which this project's own tests use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.full
@pytest.mark.lockstep(n=2, devices=2)
def test_the_processes_are_forks_of_one_interpreter(request: pytest.FixtureRequest) -> None:
    command = Path("/proc/self/cmdline").read_text().split("\0")
    modules = request.config.getoption("lockstep_preload")
    assert ("lockstep.processes.preloaded" in command) == bool(modules), command
    if modules:  # and what each session of pytest in a rank imports
        assert f"{modules},lockstep.testing.remote" in command
