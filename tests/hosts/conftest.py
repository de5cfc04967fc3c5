"""Agents of several hosts, which end with the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    """Makes a `Fleet` of the commands that lead to the hosts' agents."""
    with contextlib.ExitStack() as stack:

        def make(command: Callable[[Host], Sequence[str]], **options: Any) -> Fleet:
            made = Fleet(command, **options)
            stack.callback(made.end)
            return made

        yield make
