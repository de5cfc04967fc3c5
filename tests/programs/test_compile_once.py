"""The processes of a job share JAX's compilation cache: one compiles, the others load."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jax._src import lru_cache

from lanes import sample
from lockstep import _jax_compat
from lockstep._jax_compat import compilation_cache
from lockstep.programs import compile_once
from support import run_lockstep

SECONDS = 60
PROGRAM = """
import collections, sys
import jax, jax.monitoring, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", float(sys.argv[2]))
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
jax.distributed.initialize()
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
n = jax.device_count()
mesh = jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,))
rows = np.arange(4 * n, dtype=np.float32)
x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, P("x")), lambda i: rows[i])


def body(v):
    ring = [(i, (i + 1) % n) for i in range(n)]
    return jax.lax.psum(v, "x"), jax.lax.ppermute(v, "x", ring), v * 0 + jax.lax.axis_index("x")


# Over the devices of all processes: each result depends on where a device stands.
total, moved, places = jax.jit(
    jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=(P(), P("x"), P("x")))
)(x)
assert (np.asarray(total) == rows.reshape(n, -1).sum(0)).all()
around = np.roll(rows.reshape(n, -1), 1, 0).ravel()
for one, place in zip(moved.addressable_shards, places.addressable_shards, strict=True):
    assert (np.asarray(one.data) == around[one.index]).all()
    assert (np.asarray(place.data) == one.index[0].start // 4).all()

# On one device of this process, and on both.
for device in jax.local_devices():
    y = jax.jit(lambda v: v + 3)(jax.device_put(np.float32(1), device))
    assert y.devices() == {device} and float(y) == 4
own = jax.sharding.Mesh(jax.local_devices(), "y")
z = jax.device_put(np.arange(4.0, dtype=np.float32), NamedSharding(own, P("y")))
assert float(jax.jit(lambda v: (v * v).sum())(z)) == 14
if jax.process_index() == 1:
    assert float(jax.jit(lambda v: v / 7)(np.float32(14))) == 2
print(events["compile_requests_use_cache"], events["cache_hits"])
"""
DISTINCT = 5
"""The programs of PROGRAM in all processes."""


def counts(folder: Path, *options: str, keep: float = 0.0, n: int = 2) -> list[tuple[int, int]]:
    """The programs of each process, and those that it has found in the cache."""
    args = [str(folder), str(keep)]
    result = run_lockstep(
        list(options), PROGRAM, n=n, d=2, timeout=150, program_args=args, forked=True
    )
    lines = ["\n".join(result.by_process[i]) for i in range(n)]
    found = [re.findall(r"^(\d+) (\d+)$", each, re.M) for each in lines]
    return [(int(asked), int(hits)) for [(asked, hits)] in found]


@sample("collectives", ["lockstep", "gloo"], 0)
def test_a_program_is_compiled_once_and_never_at_the_second_start(
    collectives: str, tmp_path: Path
) -> None:
    first = counts(tmp_path, "--collectives", collectives)
    second = counts(tmp_path, "--collectives", collectives)
    assert [asked for asked, _ in first] == [asked for asked, _ in second]
    assert sum(asked - hits for asked, hits in first) == DISTINCT, first
    assert all(asked == hits for asked, hits in second), second
    assert not list((tmp_path / "lockstep-locks").iterdir())


@pytest.mark.full
def test_fast_programs_are_compiled_by_each_process_as_jax_does(tmp_path: Path) -> None:
    for _ in range(2):
        assert all(hits == 0 for _, hits in counts(tmp_path, keep=1000.0))
    assert len(list((tmp_path / "lockstep-locks").iterdir())) >= DISTINCT
    # What the locks say does not keep programs out of the cache.
    assert all(asked > hits for asked, hits in counts(tmp_path))
    assert all(asked == hits for asked, hits in counts(tmp_path))


class Cache:
    """A cache of one program, and how often it was compiled."""

    def __init__(self, folder: Path, kept: bool = True) -> None:
        self.folder = folder
        self.kept = kept
        self.has = False
        self.compiled = 0
        self.compiling = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def compile(self) -> str:
        self.compiled += 1
        self.compiling.set()
        assert self.go_on.wait(SECONDS)
        self.has = self.kept
        return "compiled"

    def get(self) -> str:
        return compile_once._once(
            _jax_compat.Miss(
                str(self.folder),
                "key",
                lambda: "loaded" if self.has else None,
                self.compile,
                lambda: self.has,
            )
        )

    def on_a_thread(self) -> tuple[threading.Thread, list[str]]:
        got: list[str] = []
        thread = threading.Thread(target=lambda: got.append(self.get()), daemon=True)
        thread.start()
        return thread, got


def test_who_comes_meanwhile_waits_and_loads(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.go_on.clear()
    first, made = cache.on_a_thread()
    assert cache.compiling.wait(SECONDS)
    second, loaded = cache.on_a_thread()
    cache.go_on.set()
    for thread in (first, second):
        thread.join(SECONDS)
    assert (made, loaded, cache.compiled) == (["compiled"], ["loaded"], 1)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock, as one that compiles."""
    (tmp_path / "lockstep-locks").mkdir()
    source = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
    source += "print('held', flush=True); time.sleep(600)"
    path = tmp_path / "lockstep-locks" / "key"
    command = [sys.executable, "-c", source, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_process_that_dies_while_it_compiles_holds_up_none(
    holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    thread, got = cache.on_a_thread()
    thread.join(0.3)
    assert thread.is_alive()
    assert not cache.compiled
    os.kill(holder.pid, signal.SIGKILL)
    thread.join(SECONDS)
    assert (got, cache.compiled) == (["compiled"], 1)
    assert cache.get() == "loaded"


def test_the_wait_has_an_end(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_once, "_WAIT_SECONDS", 0.1)
    assert Cache(tmp_path).get() == "compiled"


def test_for_a_program_that_is_not_kept_no_process_waits_twice(tmp_path: Path) -> None:
    cache = Cache(tmp_path, kept=False)
    assert cache.get() == "compiled"
    with open(tmp_path / "lockstep-locks" / "key") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cache.get() == "compiled"


def test_a_folder_that_cannot_be_used_costs_only_the_sharing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Cache(tmp_path / "file").get() == "compiled"


def test_an_error_of_the_compiler_reaches_the_program_and_frees_the_lock(tmp_path: Path) -> None:
    def fail() -> Any:
        raise RuntimeError("no memory")

    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="no memory"):
        compile_once._once(
            _jax_compat.Miss(str(tmp_path), "key", lambda: None, fail, lambda: False)
        )
    assert cache.get() == "compiled"


def test_half_an_entry_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = compilation_cache._whole(lru_cache.LRUCache.put, lru_cache._CACHE_SUFFIX)
    cache = lru_cache.LRUCache(str(tmp_path), max_size=-1)
    kind = type(cache.path)
    write = kind.write_bytes

    def dies(path: Any, data: bytes) -> int:
        write(path, data[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "write_bytes", dies)
        with pytest.raises(KeyboardInterrupt):
            put(cache, "key", b"program")
    assert cache.get("key") is None
    put(cache, "key", b"program")
    assert cache.get("key") == b"program"


def test_the_key_tells_processors_apart(tmp_path: Path) -> None:
    one = "processor : 0\nmodel name : A\nflags : avx2\ncpu MHz : 1\n"
    texts = [one, one.replace("MHz : 1", "MHz : 2"), one.replace("avx2", "avx2 avx512f")]
    names = []
    for text in texts:
        (tmp_path / "cpuinfo").write_text(text + "\n" + text.replace(": 0", ": 1"))
        names.append(compile_once.machine(str(tmp_path / "cpuinfo")))
    assert names[0] == names[1] != names[2]
