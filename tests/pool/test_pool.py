"""`lockstep.spawn` and `lockstep.Pool`: results, errors of every kind, and what is left after."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import lockstep
from lockstep.pool import call, hosts, messages
from of_this_jax import where_numbered, without_warnings
from processes import python
from support import MARK, assert_unsaid, marked, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[lockstep.Pool]:
    with lockstep.Pool(n=2, devices=2) as made:
        yield made


def total() -> float:
    """A sum over all devices of the job."""
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(np.ones(3)).sum())


def described(factor: int, *, offset: int) -> dict[str, Any]:
    print(f"printed by {jax.process_index()}")
    print("unfinished", end="", file=sys.stderr)
    return {"rank": jax.process_index(), "x": jax.numpy.arange(3) * factor + offset}


def test_results_come_back_by_rank_and_output_with_the_rank(
    pool: lockstep.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = pool.run(described, (2,), {"offset": 1})
    assert (first["rank"], second["rank"]) == (0, 1)
    for found in (first, second):
        assert type(found["x"]) is np.ndarray
        assert found["x"].tolist() == [1, 3, 5]
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == ["[0] printed by 0", "[1] printed by 1"]
    assert sorted(without_warnings(said.err)) == ["[0] unfinished", "[1] unfinished"]


def test_processes_stay_and_have_joined_one_job(pool: lockstep.Pool) -> None:
    assert pool.run(total) == [6.0, 6.0]
    pids = pool.pids
    assert pool.run(os.getpid) == pids
    assert pool.run(lambda: jax.device_count()) == [4, 4]
    assert pool.pids == pids


def fail_alike() -> None:
    total()
    raise KeyError("no such key")


def test_an_exception_comes_with_its_traceback_and_the_pool_stays(pool: lockstep.Pool) -> None:
    pids = pool.run(os.getpid)
    with pytest.raises(KeyError, match="no such key") as caught:
        pool.run(fail_alike)
    cause = str(caught.value.__cause__)
    assert "of 2:\nTraceback (most recent call last):" in cause
    assert "in fail_alike" in cause
    assert caught.value.__notes__[0].endswith("s later: the same")
    with pytest.raises(lockstep.SpawnError, match=r"process 1 of 2 raised sys.exit\(3\)"):
        pool.run(lambda: sys.exit(3) if jax.process_index() else None)
    assert pool.run(os.getpid) == pids


def made_here() -> Any:
    """A function with another one inside, which no process can import."""

    def outer(rank: int) -> Any:
        def inner() -> None:
            if jax.process_index() == rank:
                raise KeyError("no such key")

        total()
        inner()
        total()
        return inner

    return outer


@pytest.mark.full
def test_a_function_that_is_sent_keeps_its_file_and_lines(pool: lockstep.Pool) -> None:
    raised = made_here.__code__.co_firstlineno + 6
    with pytest.raises(KeyError) as caught:
        pool.run(made_here(), (1,))
    assert f'File "{__file__}", line {raised}, in inner' in str(caught.value.__cause__)
    first, _ = pool.run(made_here(), (-1,))
    assert first.__code__.co_filename == __file__


def fail_alone() -> None:
    total()
    if jax.process_index() == 1:
        raise ValueError("only one")
    total()


def leave_early() -> None:
    total()
    if jax.process_index() == 0:
        total()


def differ() -> None:
    from jax.experimental import multihost_utils

    multihost_utils.process_allgather(np.ones(3 + jax.process_index()))


def die() -> None:
    if jax.process_index() == 1:
        os.kill(os.getpid(), 9)
    total()


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def test_the_failure_of_one_ends_the_wait_of_the_other(pool: lockstep.Pool) -> None:
    with pytest.raises(ValueError, match="only one") as caught:
        pool.run(fail_alone, timeout=60)
    assert "process 0 waited for it in a collective, and was aborted" in notes(caught.value)
    assert "process 1 left the function; the others wait for it" in notes(caught.value)
    assert pool.run(total) == [6.0, 6.0]


@pytest.mark.full
def test_a_process_that_returns_early_is_named_with_the_line(pool: lockstep.Pool) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        pool.run(leave_early, timeout=60)
    assert "process 1 left the function; the others wait for it" in str(caught.value)
    assert "returned after" in str(caught.value)
    assert where_numbered("test_pool.py") in str(caught.value)
    assert "Likely: a loop with fewer steps on process 1" in str(caught.value)
    assert_unsaid("os._exit()", str(caught.value))
    assert pool.run(total) == [6.0, 6.0]


@pytest.mark.full
def test_a_divergence_is_diagnosed_and_what_catches_it_leaves_no_broken_pool(
    pool: lockstep.Pool,
) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="Likely: different shapes"):
        pool.run(differ)
    assert pool.run(total) == [6.0, 6.0]


def test_a_death_is_told_by_signal_and_new_processes_start(pool: lockstep.Pool) -> None:
    before = pool.run(os.getpid)
    with pytest.raises(lockstep.SpawnError) as caught:
        pool.run(die)
    assert "process 1 of 2 died: killed by SIGKILL (signal 9)" in str(caught.value)
    assert "process 0 failed" in notes(caught.value)
    assert pool.run(total) == [6.0, 6.0]
    assert not set(pool.pids) & set(before)


def sleep_somewhere() -> None:
    if jax.process_index() == 1:
        time.sleep(100)


def test_a_deadline_names_the_processes_and_shows_their_stacks(pool: lockstep.Pool) -> None:
    pool.run(total)  # so that process 0 is back within the deadline, also of a new pool
    with pytest.raises(lockstep.SpawnTimeoutError) as caught:
        pool.run(sleep_somewhere, timeout=0.5)
    assert str(caught.value).startswith("process 1 of 2 did not return in time")
    assert "in sleep_somewhere" in notes(caught.value)


def test_ctrl_c_reaches_the_function_and_the_processes_stay(pool: lockstep.Pool) -> None:
    pids = pool.run(os.getpid)
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(time.sleep, (100,))
    timer.join()
    assert pool.run(os.getpid) == pids


def spread() -> jax.Array:
    mesh = lockstep.process_mesh()
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    return jax.make_array_from_process_local_data(place, np.ones(1))


def test_what_cannot_be_sent_is_told(pool: lockstep.Pool) -> None:
    with pytest.raises(lockstep.SpawnError, match="the function or its arguments cannot be sent"):
        pool.run(print, (threading.Lock(),))
    with pytest.raises(lockstep.SpawnError, match="the result cannot be sent to the caller"):
        pool.run(lambda: (i for i in ()))
    with pytest.raises(lockstep.SpawnError, match="an array that is spread over processes"):
        pool.run(spread)
    with pytest.raises(TypeError, match="must be a function, not int"):
        pool.run(3)  # pyright: ignore[reportArgumentType]
    wrong: Any
    for wrong, words in ((1, r"not int: args=\(1,\)"), ("ab", r"not str: args=\('ab',\)")):
        with pytest.raises(TypeError, match=f"args must be a tuple, {words}"):
            pool.run(print, wrong)
    wrong = np.zeros((50, 2))
    with pytest.raises(TypeError, match=r"args must be a tuple, not ndarray: args=\(...,\)"):
        pool.run(print, wrong)
    wrong = [1]
    with pytest.raises(TypeError, match="kwargs must be a dict, not list"):
        pool.run(print, (), wrong)


class Unloadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.full
def test_messages_that_do_not_come_through_and_a_closed_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "SEND_SECONDS", 1.0)
    with lockstep.Pool(n=1, devices=1) as pool:
        [pid] = pool.run(os.getpid)
        # It reads nothing, and the kernel's buffer takes a part of the message only.
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(lockstep.SpawnError, match="process 0 of 1 was lost: it did not read"):
            pool.run(len, (bytes(1 << 24),), timeout=60)
        with pytest.raises(lockstep.SpawnError, match=r"process 0 .* cannot be loaded here: Value"):
            pool.run(Unloadable)
        pool.close()
        pool.close()
        with pytest.raises(lockstep.SpawnError, match="the pool is closed"):
            pool.run(os.getpid)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "n=0: expected a whole number, 1 or more"),
        ({"devices": 1.5}, "devices=1.5: expected a whole number"),
        ({"collectives": "glo"}, "expected one of lockstep, gloo, mpi"),
        ({"n": 100_000}, "each process takes about|there is room for|JAX process takes about"),
        ({"hosts": "a,,b"}, "--hosts a,,b: a host's name is missing"),
        ({"hosts": ["a:2", "b"], "n": 4}, "-n 4: the hosts have 3 slots"),
        ({"options": "--interface eth1"}, "give the names of hosts"),
        ({"hosts": "a", "options": "--no-such"}, "options: unrecognized arguments: --no-such"),
        ({"hosts": "a", "options": "--ssh '"}, "No closing quotation"),
        ({"hosts": "a", "options": "--min-hosts 1"}, "--spares, --grow and --this-host are for"),
        ({"hosts": "a", "collectives": "mpi"}, "an MPI library is started by its own launcher"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(lockstep.LockstepError, match=words):
        lockstep.spawn(total, **arguments)


CALLER = """
import os, sys, threading, lockstep
answers = []
def work():
    answers.append(lockstep.spawn(lambda: os.getppid() > 0, n=1, devices=1))
thread = threading.Thread(target=work); thread.start(); thread.join()
pool = lockstep.Pool(n=2, devices=1)
ranks = pool.run(lambda: __import__("jax").process_index())
print(answers, ranks, "jax" in sys.modules, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", ["none"]),
        ("--bind cores", ["cores"]),
        ("--bind=none", ["none"]),
        ("--preload jax,numpy", ["none", "--preload", "jax,numpy"]),
    ],
)
def test_processes_of_this_machine_are_bound_on_request(options: str, words: list[str]) -> None:
    assert hosts.parse("", options, 2) == (["--bind", *words], ())


@pytest.mark.full
def test_a_caller_without_jax_in_a_thread_and_killed_leaves_nothing(tmp_path: Any) -> None:
    mark = uuid.uuid4().hex
    ended = python(CALLER, env={MARK: mark, "TMPDIR": str(tmp_path)}, timeout=120)
    assert ended.stdout.splitlines() == ["[[True]] [0, 1] False"], ended
    assert ended.status == -9
    wait_until(lambda: not marked(mark), "processes of a killed caller are left")
    wait_until(lambda: not list(tmp_path.glob("lockstep-run-*")), "its directory is left")


@pytest.mark.full
@pytest.mark.parametrize(("collectives", "n"), [("lockstep", 1), ("gloo", 2), ("mpi", 2)])
def test_every_kind_of_collectives(collectives: str, n: int) -> None:
    found = lockstep.spawn(total, n=n, devices=1, collectives=collectives, timeout=60)
    assert found == [3.0 * n] * n


@pytest.mark.full
def test_over_gloo_a_wait_in_vain_is_told_with_the_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "NOTICE_SECONDS", 1.0)
    with pytest.raises(lockstep.SpawnTimeoutError) as caught:
        lockstep.spawn(leave_early, devices=1, collectives="gloo", timeout=15)
    assert "process 1 left the function; the others wait for it." in notes(caught.value)
    said = capsys.readouterr().err
    assert "lockstep: process 1 left the function 1 s ago. Still in it, perhaps in a" in said
    assert re.search(r"process 0 at \S*test_pool\.py:\d+ in total", said), said


TYPED = """import lockstep
def f(x):
    return x + 1

print(lockstep.spawn(f, 1, 1, (2,)))
"""


@pytest.mark.full
def test_a_prompt_can_define_the_function() -> None:
    ended = subprocess.run(
        [sys.executable, "-i"], input=TYPED, text=True, capture_output=True, timeout=90
    )
    assert "[3]" in ended.stdout, ended
