"""``lockstep worker`` where the disk of its private files is full: the job runs, and says so."""

from __future__ import annotations

import os

import pytest

from lanes import needs
from worker.workers import TIMEOUT, Workers, workers_with

pytestmark = [needs(os.geteuid() == 0, "needs root, to mount a file system"), pytest.mark.full]

PROGRAM = """
import jax, jax.numpy as jnp
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
print("sum", float(total(jnp.ones(1))[0]))
if jax.process_index() == 1:
    raise ValueError("planted")
"""
FULL = 'mount -t tmpfs -o size=64k none "$TMPDIR"; cat /dev/zero >"$TMPDIR/x" 2>&-; exec "$@"'
workers = workers_with(PROGRAM)


def test_the_job_runs_and_says_what_is_missing_and_what_to_do(workers: Workers) -> None:
    prefix = ["unshare", "--mount", "sh", "-c", FULL, "sh"]
    started = [workers.start(rank, prefix=prefix) for rank in range(2)]
    said = [process.communicate(timeout=TIMEOUT)[0] for process in started]
    for text in said:
        assert "sum 2.0" in text, said
        assert ": No space left on device. The job goes on, but errors will not say how a" in text
        assert "process died: make room there, or set TMPDIR." in text
    assert "ValueError: planted" in said[1]
    assert [process.returncode for process in started] == [0, 1], said
