"""A host whose clocks are wrong by hours: which process failed, and when, is told as it is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanes import needs
from ssh_hosts import NEEDED, SshHosts, WrongClocks, ssh_hosts
from support import assert_unsaid

pytestmark = [
    NEEDED,
    needs(bool(shutil.which("cc")), "needs a C compiler"),
    pytest.mark.full,
]

SOURCE = Path(__file__).parent / "programs" / "wall_clock.c"
HOUR = 3600
LOOP = """
import os, time
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize()
me = jax.process_index()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
print("clocks", time.time(), time.monotonic(), flush=True)
for step in range(5):
    if me == 1 and step == 3:
        {end}
    result = float(total(jnp.ones(1))[0])
print("sum", result)
"""


@pytest.fixture(scope="module", params=[1, -1], ids=["ahead", "behind"])
def hosts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshHosts]:
    folder = tmp_path_factory.mktemp("clocks")
    library = folder / "wall_clock.so"
    build = ["cc", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    # A clock that counts from the boot cannot be before it.
    boot = 2 * HOUR if request.param > 0 else -HOUR // 60
    clocks = WrongClocks(library, 3 * HOUR * request.param, boot)
    with ssh_hosts(folder, "ab", clocks={"b": clocks}) as made:
        yield made


def run(hosts: SshHosts, folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    words = hosts.run_command(folder, LOOP.format(end=end), "--hosts", "a,b")
    done = hosts.run("a", words, timeout=90, check=False)
    clocks = dict(line.split(" clocks ") for line in done.stdout.splitlines() if "clocks" in line)
    walls = [float(text.split()[0]) for _, text in sorted(clocks.items())]
    assert abs(abs(walls[1] - walls[0]) - 3 * HOUR) < 60, done
    assert "b  warning  clock  10800 s" in done.stderr, done
    hosts.assert_nothing_left()
    return done


def test_a_job_ends_well(hosts: SshHosts, tmp_path: Path) -> None:
    done = run(hosts, tmp_path, "pass")
    assert (done.returncode, done.stdout.count("sum 2.0")) == (0, 2), done


def test_a_killed_process_is_the_cause(hosts: SshHosts, tmp_path: Path) -> None:
    done = run(hosts, tmp_path, "os.kill(os.getpid(), 9)")
    assert done.returncode == 137, done
    assert "process 1 of 2 on b failed first: killed by SIGKILL" in done.stderr, done
    assert "on b) was killed by SIGKILL (signal 9) after 3 collectives; process 0 wait" in (
        done.stderr
    )
    assert_unsaid("not arrived yet", done.stderr)


def test_an_exception_is_the_cause(hosts: SshHosts, tmp_path: Path) -> None:
    done = run(hosts, tmp_path, "raise ValueError('no data')")
    first, *_, last = [x for x in done.stderr.splitlines() if x.startswith("lockstep: process")]
    for text in (first, last):
        assert "process 1 of 2 on b failed first: ValueError: no data" in text, done
