"""A supervisor of a job whose agents are the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.supervised import Job, Start


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Start]:
    made: list[Job] = []

    def start(*args: Any, **values: Any) -> Job:
        made.append(Job(tmp_path, *args, **values))
        return made[-1]

    yield start
    for job in made:
        if job.process.poll() is None:
            job.end()
