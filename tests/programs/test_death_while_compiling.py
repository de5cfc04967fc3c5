"""A process that is killed while it compiles into JAX's cache, in a real job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import Result, run_lockstep

PROGRAM = """
import os, pathlib, signal, sys, threading, time
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

folder, dies = pathlib.Path(sys.argv[1]), sys.argv[2] == "dies"
jax.config.update("jax_compilation_cache_dir", str(folder))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.distributed.initialize()


def die_once_it_compiles():
    while True:
        locks = [line.split() for line in open("/proc/locks") if "FLOCK" in line]
        mine = {words[5].split(":")[2] for words in locks if words[4] == str(os.getpid())}
        for path in folder.glob("lockstep-locks/jit_step*"):
            if str(path.stat().st_ino) in mine:
                (folder / "died").touch(exist_ok=False)  # the other process compiles then
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)


if dies:
    threading.Thread(target=die_once_it_compiles, daemon=True).start()
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((16, 32), rows, lambda i: jnp.ones((16, 32))[i])


def loss(x):
    for i in range(12):
        x = jnp.tanh(jax.nn.softmax(x @ x.T) @ x) + x / (i + 1)
    return (x**2).mean()


@jax.jit
def step(x):
    return jax.grad(loss)(x).sum()


print("value", float(step(x)), flush=True)
"""


def job(folder: Path, word: str, status: int | None) -> Result:
    args = [str(folder), word]
    return run_lockstep([], PROGRAM, d=1, timeout=150, program_args=args, expect_status=status)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_next_jobs_use_its_cache_and_get_the_same_numbers(tmp_path: Path) -> None:
    died = job(tmp_path / "cache", "dies", None)
    assert died.status != 0
    assert (tmp_path / "cache" / "died").exists(), died
    assert "SIGKILL" in died.stderr, died
    assert "value" not in died.stdout
    again, loaded, fresh = (
        re.findall(r"value (\S+)", job(tmp_path / folder, "lives", 0).stdout)
        for folder in ("cache", "cache", "new")
    )
    assert len(fresh) == 2
    assert again == loaded == fresh
    assert list((tmp_path / "cache").glob("jit_step*-cache"))
    assert not list((tmp_path / "cache" / "lockstep-locks").glob("jit_step*"))
