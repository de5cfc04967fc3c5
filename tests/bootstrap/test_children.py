"""Programs that a program starts: those that run stock JAX run it as without Lockstep."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lanes import sample
from lockstep import ImportOrderError, _jax_compat
from lockstep.bootstrap import plugin, spawned_children
from processes import Ended, python
from support import run_lockstep

# What a program does that has never heard of Lockstep: a job of one process, two devices.
STOCK = """
import jax, socket
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
x = jax.pmap(lambda a: jax.lax.psum(a, "i"), "i")(jax.numpy.ones((2, 3)))
print(jax.config.jax_cpu_collectives_implementation, float(x[0, 0]), flush=True)
"""
BEGINNINGS = ["import lockstep", "import lockstep, jax", "import lockstep; from jaxlib import _jax"]


def computed(ended: Ended) -> str:
    """What `STOCK` printed; gloo has words of its own."""
    assert ended.status == 0, ended
    return "\n".join(line for line in ended.stdout.splitlines() if "Gloo" not in line)


@pytest.mark.full
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_child_by_subprocess_gets_stock_jax(beginning: str) -> None:
    ended = python(
        f"""
        import os
        {beginning}
        assert not {{"MPITRAMPOLINE_LIB", "JAX_CPU_COLLECTIVES_IMPLEMENTATION"}} & set(os.environ)
        import subprocess, sys
        subprocess.run([sys.executable, "-c", {STOCK!r}], check=True, timeout=50)
        """
    )
    assert computed(ended) == "gloo 2.0", ended


SPAWNING = """
import multiprocessing
{imports}
def child():
    exec({stock!r}, {{}})
if __name__ == "__main__":
    process = multiprocessing.get_context("{how}").Process(target=child)
    process.start()
    process.join(50)
    assert process.exitcode == 0, process.exitcode
"""


@pytest.mark.full
@sample("imports", ["import lockstep", "import jax, lockstep"], 0)
@sample("how", ["spawn", "forkserver"], 0)
def test_a_child_by_multiprocessing(how: str, imports: str) -> None:
    """It imports its parent's program again: Lockstep with the engine, or after jax without."""
    program = SPAWNING.format(imports=imports, stock=STOCK, how=how)
    result = run_lockstep([], program, n=1, timeout=90)
    late = imports.startswith("import jax")
    assert f"{'gloo' if late else 'mpi'} 2.0" in result.stdout.splitlines()[-1], result


@pytest.mark.full
def test_a_spawned_child_that_imports_jax_first_joins_no_job() -> None:
    """It would run on gloo, in the clear, while its parent's program has a key."""
    joins = "import jax, lockstep\nlockstep.initialize('127.0.0.1:1', 2, 0)"
    program = SPAWNING.format(imports="import jax, lockstep", stock=joins, how="spawn")
    result = run_lockstep([], program, n=1, timeout=90, expect_status=1)
    assert "ImportOrderError: lockstep was imported after jax" in result.stderr, result


@pytest.mark.parametrize(("client", "count", "raises"), [(None, 1, 0), (1, 1, 0), (1, 2, 1)])
def test_the_same_without_lockstep_initialize(
    monkeypatch: pytest.MonkeyPatch, client: int | None, count: int, raises: int
) -> None:
    monkeypatch.setattr(_jax_compat, "distributed_client", lambda: client)
    monkeypatch.setattr(_jax_compat, "distributed_place", lambda: (0, count))
    with pytest.raises(ImportOrderError) if raises else contextlib.nullcontext():
        plugin._check_no_job()


@pytest.mark.full
def test_a_child_by_fork_of_a_program_that_has_not_used_jax() -> None:
    ended = python(
        f"""
        import os, sys
        import lockstep
        child = os.fork()
        if child == 0:
            exec({STOCK!r}, {{}})
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert computed(ended) == "mpi 2.0", ended  # lockstep is imported there, too, and works


@sample("collectives", ["lockstep", "gloo"], 0)
def test_children_of_a_process_of_a_job(collectives: str) -> None:
    program = f"""
        import subprocess, sys
        import jax
        jax.distributed.initialize()
        jax.devices()
        subprocess.run([sys.executable, "-c", {STOCK!r}], check=True, timeout=50)
        """
    options = ["--collectives", collectives]
    result = run_lockstep(options, program, timeout=90, forked=True)
    for lines in result.by_process.values():
        # Gloo may write its own lines in pieces.
        assert lines[-1] == "gloo 2.0", result


IGNORES_SIGTERM = """
import multiprocessing, time, jax
jax.distributed.initialize()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
child.start()
time.sleep(0.2)
child.terminate()
child.join(2)
print("alive", child.is_alive())
child.kill()
"""
POOLS = """
from multiprocessing import get_context
import jax
def main():
    jax.distributed.initialize()
    with get_context("forkserver").Pool(1) as pool:
        print(pool.apply(float, (3,)), flush=True)
    pool = get_context("fork").Pool(1)
    print(pool.apply(float, (4,)), flush=True)
    pool.close()
    pool.join()
if __name__ == "__main__":
    main()
"""


@pytest.mark.full
def test_a_forked_child_ignores_sigterm_and_pools_can_end_without_it() -> None:
    """As the sharp bits say: JAX's handler of SIGTERM is inherited, so `Pool.terminate` waits."""
    assert "alive True" in run_lockstep([], IGNORES_SIGTERM, n=1, timeout=90).stdout
    assert run_lockstep([], POOLS, n=1, timeout=90).stdout.splitlines() == ["[0] 3.0", "[0] 4.0"]


AGAIN = """
from multiprocessing import get_context
import jax
jax.distributed.initialize()
child = get_context("{how}").Process(target=print, args=("not reached",))
child.start()
child.join(60)
print("exit code", child.exitcode)
"""


@sample("how", ["spawn", "forkserver"], 0)
def test_a_child_that_imports_the_main_file_again_cannot_join(how: str) -> None:
    result = run_lockstep([], AGAIN.format(how=how), n=1, timeout=90)
    assert "exit code 1" in result.stdout, result
    assert "not reached" not in result.stdout
    said = [line for line in result.stderr.splitlines() if "at the top level" in line]
    assert len(said) == 1, result
    assert (
        ":4 calls initialize() at the top level of the program, and the program spawns" in said[0]
    )
    assert 'under `if __name__ == "__main__":`' in said[0]


@pytest.mark.full
def test_a_child_that_imports_lockstep_again_is_told_what_it_is() -> None:
    program = AGAIN.format(how="spawn").replace("import jax", "import lockstep, jax")
    result = run_lockstep([], program, n=1, timeout=90)
    assert "exit code 1" in result.stdout, result
    assert "InitializationError: this process was spawned by a process of the job" in result.stderr


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import jax\njax.distributed.initialize()", 2),
        ("import jax.distributed as dist\ndist.initialize(\n  num_processes=2)", 2),
        ("import lockstep\n\nlockstep.initialize()", 3),
        ("import jax\nif __name__ == '__main__':\n    jax.distributed.initialize()", 0),
        ("import jax\ndef main():\n    jax.distributed.initialize()", 0),
        ("this is no Python", 0),
    ],
)
def test_which_calls_a_child_would_repeat(source: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    said = spawned_children.problem(str(tmp_path / "train.py"))
    assert (f"train.py:{line} calls initialize()" in said) == bool(line)
    assert bool(said) == bool(line)
    assert not spawned_children.problem(str(tmp_path / "missing.py"))


GRAIN = """
import grain
import jax
from absl import flags

flags.FLAGS.mark_as_parsed()  # Grain reads flags of absl
{top}

def main():
    {inside}
    rows = grain.MapDataset.range(8).to_iter_dataset()
    rows = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    print("rows", sorted(rows))


if __name__ == "__main__":
    main()
"""


@pytest.mark.full
@pytest.mark.parametrize("at_the_top", [False, True], ids=["in main", "at the top"])
def test_worker_processes_of_grain_import_the_main_file_again(at_the_top: bool) -> None:
    join = "jax.distributed.initialize()"
    program = GRAIN.format(top=join if at_the_top else "", inside="" if at_the_top else join)
    result = run_lockstep([], program, n=1, timeout=120, expect_status=int(at_the_top))
    if at_the_top:
        assert ":7 calls initialize() at the top level of the program" in result.stderr, result
    else:
        assert "rows [0, 1, 2, 3, 4, 5, 6, 7]" in result.stdout, result
