"""Two hosts that share a key, so that their processes run on the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.hosts import Hosts, some_hosts


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Their processes have the ``VARIABLES`` of the test's module, if it has any."""
    with some_hosts(tmp_path, forked=True) as hosts:
        for host in range(2):
            hosts.write_key(host)
        hosts.variables.update(getattr(request.module, "VARIABLES", {}))
        yield hosts
