"""The kernel kills a process because its control group has no memory left: said in these words."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanes import must_run
from processes import captured, clean_environ

LIMIT = 1_200_000_000
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
ones = jnp.ones(jax.local_device_count())
for _ in range(3):
    total(ones)
if jax.process_index() == 1:
    too_much = [np.ones(1 << 24) for _ in range(20)]  # 2.7 GB
try:
    print(float(total(ones)[0]))
except (jax.errors.JaxRuntimeError, ValueError) as error:
    print(error)
"""


@contextlib.contextmanager
def memory_group() -> Iterator[Path | None]:
    """A control group with `LIMIT` bytes of memory; None where we may not make one."""
    for parent, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", parent, f"lockstep-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(str(LIMIT))
                yield group
                return
        except PermissionError:
            continue
        finally:
            group.rmdir()
    yield None


@pytest.mark.full
def test_a_process_that_the_kernel_kills_for_memory_is_reported_by_that_name(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", "-d", "1", str(program)]
    with memory_group() as group:
        if group is None:
            assert not must_run(), "no control group of our own"
            pytest.skip("no control group of our own: tests/system/test_oom.py has the counters")
        join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        done = captured(
            ["sh", "-c", join, "sh", *command], env=clean_environ(TMPDIR=str(tmp_path)), timeout=120
        )
    assert done.returncode == 137, done
    assert "process 1 of 2 failed first: killed by SIGKILL (signal 9): out of memory" in done.stderr
    told = r"process 1 \(pid \d+ on .*\) was killed by SIGKILL \(signal 9\) after 3 collectives: "
    assert re.search(rf"\[0\] .*{told}out of memory; process 0 waits in its 4th", done.stdout), done
    assert "Likely: out of memory: process 1 took more than" in done.stdout, done
