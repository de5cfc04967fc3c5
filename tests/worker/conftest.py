"""A supervisor of a job whose agents are the test, and nodes with real agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.system import process_tree
from support import marked
from worker.nodes import Nodes, mark_of
from worker.supervised import Job, Start


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Start]:
    made: list[Job] = []

    def start(*args: Any, **values: Any) -> Job:
        made.append(Job(tmp_path, *args, **values))
        return made[-1]

    yield start
    for job in made:
        job.end()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[type[Nodes]]:
    try:
        yield Nodes
    finally:
        process_tree.kill(marked(mark_of(tmp_path)))
