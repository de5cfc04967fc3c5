"""The application's own waits: `barrier`, `assert_same`, `only_on`."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pytest

import lockstep as ls
from lockstep.testing.ranks import Ranks
from support import run_lockstep

of_three = pytest.mark.lockstep(n=3, devices=1)


def shared() -> Path:
    """A folder that all processes of the job can see."""
    return Path(os.environ["LOCKSTEP_RUN_DIR"])


@of_three
def test_a_barrier_holds_all_until_the_last_has_come(lockstep: Ranks) -> None:
    if lockstep.rank == 2:
        time.sleep(1)
        (shared() / "last").touch()
    for _ in range(3):
        ls.barrier("all here")
        assert (shared() / "last").exists()


@of_three
def test_equal_values_pass_again_and_again() -> None:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from lockstep import _jax_compat

    replicated = jax.device_put(
        jax.numpy.arange(4.0), NamedSharding(ls.process_mesh(), PartitionSpec())
    )
    for step in range(3):
        ls.assert_same({"step": step, "w": replicated, "rng": jax.random.key(1)}, "state")
        ls.assert_same(np.arange(3) + step, "batch")
    ls.assert_same(frozenset({"a", "b", "c"}), "names")
    # The values of earlier checks do not pile up in the service.
    left = _jax_compat.distributed_client().key_value_dir_get("lockstep/same/state/")
    assert len(left) == 3
    assert len({key.split("/")[3] for key, _ in left}) == 1


@of_three
def test_a_difference_is_told_on_every_process_with_the_values(lockstep: Ranks) -> None:
    import numpy as np

    with pytest.raises(ls.DifferenceError) as caught:
        ls.assert_same({"lr": 0.1 if lockstep.rank != 1 else 0.5, "w": np.zeros(3)}, "config")
    first, place, *rest = str(caught.value).splitlines()
    assert first == "assert_same(..., 'config'): the processes differ"
    assert place == "at ['lr']:"
    assert rest[0] == "  processes 0, 2: 0.1"
    assert rest[1].startswith("  process 1 (pid ")
    assert rest[1].endswith("): 0.5 <- differs")


@of_three
def test_an_array_that_no_process_has_whole_is_refused() -> None:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    spread = jax.make_array_from_process_local_data(
        NamedSharding(ls.process_mesh(), PartitionSpec("process")), np.ones(1)
    )
    with pytest.raises(ValueError, match=r"the array at \[0\] is spread over processes"):
        ls.assert_same([spread], "x")


@of_three
def test_code_for_one_process_runs_there_and_collectives_go_on_after_it(lockstep: Ranks) -> None:
    import jax
    import jax.numpy as jnp

    total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")

    @ls.only_on(1)
    def told() -> str:
        return f"only here: {float(jnp.ones(3).sum())}"

    is_here = lockstep.rank == 1
    assert told() == ("only here: 3.0" if is_here else None)
    with ls.only_on(1) as here:
        assert here == is_here
        assert float(jnp.ones(2).sum()) == 2
    with ls.only_on(0), ls.only_on(1):
        pass
    pending = total(jnp.ones(jax.local_device_count()))
    for _ in range(20):
        pending = total(jnp.ones(jax.local_device_count()))  # still runs when the block begins
        with ls.only_on(0):
            pass
    assert float(pending[0]) == 3


@of_three
def test_a_process_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"^only_on\(3\): the job has 3 processes: 0-2\.$"):
        ls.only_on(3)(print)()


@of_three
def test_a_barrier_names_the_missing_process_and_where_it_is(lockstep: Ranks) -> None:
    over = threading.Event()

    def busy_elsewhere() -> None:
        for _ in range(10):  # threads of the program do not push the main one out of the text
            threading.Thread(target=over.wait, args=(30,), daemon=True).start()
        while len(list(shared().glob("told_*"))) < 2:
            time.sleep(0.1)

    if lockstep.rank == 1:
        busy_elsewhere()
        over.set()
        return
    with pytest.raises(ls.MissingProcessError) as caught:
        ls.barrier("never reached by 1", timeout=1)
    (shared() / f"told_{lockstep.rank}").touch()
    text = str(caught.value)
    assert f"barrier('never reached by 1'): process {lockstep.rank} (pid " in text
    first, *rest = text.splitlines()  # reports show the first line alone
    assert "Missing: 1 of 3 processes: process 1 (pid " in first
    assert re.search(r"has not come: /.*/test_barrier\.py:\d+ in busy_elsewhere(;|$)", first), text
    assert "in busy_elsewhere" in "\n".join(rest)


@of_three
def test_processes_in_different_barriers_learn_of_each_other(lockstep: Ranks) -> None:
    own, other = ("even", "odd") if lockstep.rank % 2 == 0 else ("odd", "even")
    with pytest.raises(ls.MissingProcessError, match=rf"last seen in barrier\('{other}'\)"):
        ls.barrier(own, timeout=2)


START = """
import os, sys, time, jax, lockstep
lockstep.initialize()
me = jax.process_index()
"""
MISSING = """
if me == 1:
    def busy_elsewhere():
        {elsewhere}
    busy_elsewhere()
else:
    try:
        lockstep.barrier("checkpoint", timeout={timeout})
    except lockstep.MissingProcessError as error:
        print(error)
        print("end of error")
    os.close(os.open(os.environ["TMPDIR"] + f"/told_{{me}}", os.O_CREAT))
"""
WAIT = 'while str(os.listdir(os.environ["TMPDIR"])).count("told") < 2: time.sleep(0.1)'


@pytest.mark.full
def test_a_process_that_comes_after_the_others_gave_up_is_told_so() -> None:
    late = f'{WAIT}\n        lockstep.barrier("checkpoint", timeout=5)'
    program = START + MISSING.format(elsewhere=late, timeout=1)
    result = run_lockstep([], program, n=3, expect_status=1, forked=True)
    assert "MissingProcessError: barrier('checkpoint')" in result.stderr
    assert "process 1 of 3 failed first" in result.said_by_launcher


@pytest.mark.full
@pytest.mark.parametrize(
    ("end", "manner"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL (signal 9)"),
        ("os._exit(3)", "failed with exit code 3"),
        ("sys.exit(0)", "ended (exit code 0)"),
    ],
)
def test_a_barrier_ends_as_soon_as_a_missing_process_has_ended(end: str, manner: str) -> None:
    program = START + MISSING.format(elsewhere=end, timeout=200)
    result = run_lockstep(["--grace", "60"], program, n=3, expect_status=None, forked=True)
    for process in (0, 2):
        text = "\n".join(result.by_process[process])
        first = text.partition("\n")[0]
        assert "Missing: 1 of 3 processes: process 1 (pid " in first, result
        assert first.endswith(manner), result


def test_a_single_process_waits_for_no_other() -> None:
    ls.barrier("alone")
    ls.assert_same(1, "alone")
    with ls.only_on(0) as here:
        assert here
    with pytest.raises(ValueError, match=r"only_on\(1\): the job has 1 process: 0\."):
        ls.only_on(1).__enter__()


@pytest.mark.lockstep(n=2, devices=2)
def test_a_collective_in_code_for_one_process_is_an_error_at_once(lockstep: Ranks) -> None:
    import jax
    import jax.numpy as jnp

    total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
    ones = jnp.ones(jax.local_device_count())
    total(ones).block_until_ready()
    kept = []

    @ls.only_on(0)
    def save() -> None:
        total(ones).block_until_ready()

    def block() -> None:
        with ls.only_on(0) as here:
            if here:
                kept.append(total(ones))  # the block's end waits for it

    for what in (save, block):
        if lockstep.rank == 1:
            what()
            continue
        with pytest.raises(Exception) as caught:
            what()
        text = str(caught.value).replace("\n", " ")
        assert "process 0 started a collective inside lockstep.only_on(0)" in text
        assert "Move the collective out of it" in text
        if what is save:
            assert "test_barrier.py:" in text
