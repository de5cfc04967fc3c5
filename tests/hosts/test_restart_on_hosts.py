"""Restarts on several hosts: from a checkpoint, on the hosts that are left, and on eight."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from processes import read_lines
from ssh_hosts import NEEDED, SshHosts, ssh_hosts
from support import wait_until

pytestmark = [NEEDED, pytest.mark.full]

TIMEOUT = 200.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint_restart.py"


def assert_nothing_runs(hosts: SshHosts) -> None:
    """A host that was taken down has kept its files."""
    wait_until(lambda: not hosts.running(), "an end of all processes", 40.0)


def lose_while_it_trains(hosts: SshHosts, lost: str, on: str, words: list[str]) -> tuple[str, str]:
    """Takes the host ``lost`` down after some steps of a job that is started ``on`` a host and ends
    well; the output of the job and what its launcher has said."""
    started = hosts.start(on, hosts.lockstep("run", *words))
    assert started.stdout is not None
    for line in started.stdout:
        if re.search(rb"step 1[2-9]: loss", line):
            break
    hosts.take_down(lost)
    out, err = started.communicate(timeout=TIMEOUT)
    assert started.returncode == 0, err.decode()
    return out.decode(), err.decode()


def test_training_goes_on_from_a_checkpoint_on_two_of_three_hosts(tmp_path: Path) -> None:
    """The host that is lost is that of process 0 and of JAX's coordination service."""
    with ssh_hosts(tmp_path, "abc") as hosts:
        options = ["--hosts", "a:2,b,c", "--chdir", str(tmp_path)]
        options += ["--max-restarts", "1", "--min-hosts", "2", "--log-dir", str(tmp_path / "logs")]
        program = [str(EXAMPLE), "--folder", str(tmp_path / "checkpoints"), "--steps", "400"]
        after, said = lose_while_it_trains(hosts, "a", "c", [*options, *program])
        assert "on a failed first: its host was lost: no answer from a" in said
        assert re.search(r"going on with 2 hosts, 2 processes, without\n +a +problem +ssh", said)
        [step] = set(re.findall(r"going on from the checkpoint of step (\d+)", after))
        assert int(step) >= 10
        [account] = (tmp_path / "logs").glob("run_*/restarts.json")  # process 0 is on another host
        [restart] = json.loads(account.read_text())["restarts"]
        assert restart["continues_from"] == int(step)
        assert f"attempt 1 continues from step {step}\n" in said
        assert f"  continued from a checkpoint: attempt 1 from step {step}\n" in said
        assert f"step {int(step) + 1}: loss" in after.partition("going on from")[2]
        assert len(re.findall(r"^\[[01]@[bc]\] weights: \w+$", after, re.MULTILINE)) == 2
        assert_nothing_runs(hosts)


def test_a_spare_goes_on_from_the_checkpoint_with_the_same_numbers(tmp_path: Path) -> None:
    """The lost host is that of process 0; the weights are those of a run that lost none."""
    with ssh_hosts(tmp_path, "abc") as hosts:
        spares = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "1"]
        steps = ["--chdir", str(tmp_path), str(EXAMPLE), "--steps", "60", "--folder"]
        words = [*spares, *steps, str(tmp_path / "lost")]
        out, said = lose_while_it_trains(hosts, "a", "b", words)
        assert "c takes the place of a, which was lost, with process 0" in said
        found = re.findall(r"^\[([01]@[bc])\] weights: (\w+)$", out, re.MULTILINE)
        assert sorted(place for place, _ in found) == ["0@c", "1@b"]
        calm = hosts.lockstep("run", "--hosts", "b,c", *steps, str(tmp_path / "calm"))
        undisturbed = hosts.run("b", calm, timeout=TIMEOUT)
        [weights] = set(re.findall(r"weights: (\w+)", undisturbed.stdout))
        assert {each for _, each in found} == {weights}
        assert_nothing_runs(hosts)


GROWING = """
import os, pathlib, time
import jax, lockstep
from jax.experimental import multihost_utils
jax.distributed.initialize()
folder, me = pathlib.Path("."), jax.process_index()
saved = folder / "step"
first = int(saved.read_text()) if saved.exists() else 0
print("begins at", first, "of", jax.process_count(), flush=True)
for step in range(first, first + 100_000):
    total = int(multihost_utils.process_allgather(jax.numpy.array([me])).sum())
    if lockstep.should_stop():
        multihost_utils.sync_global_devices("saves")
        if me == 0:
            saved.write_text(str(step + 1))
        break
    if first and jax.process_count() == 3 and step > first + 5:
        print("ends with", total)
        break
    time.sleep(0.02)
"""


def test_a_host_that_was_cut_off_returns_and_the_job_grows(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abc") as hosts:
        options = ["--hosts", "a,b,c", "--max-restarts", "1", "--min-hosts", "2", "--grow"]
        started = hosts.start("c", hosts.run_command(tmp_path, GROWING, *options))
        read_lines(started, 3, "begins at 0 of 3")
        hosts.cut("a")
        read_lines(started, 2, "begins at 0 of 2")
        hosts.mend("a")
        out, err = started.communicate(timeout=TIMEOUT)
        said = err.decode()
        assert started.returncode == 0, said
        assert "a answers again: the program is asked to end, to start again with it" in said
        step = int((tmp_path / "step").read_text())
        for number, name in enumerate("abc"):
            assert f"[{number}@{name}] begins at {step} of 3" in out.decode().splitlines()
            assert f"[{number}@{name}] ends with 3" in out.decode().splitlines()
        hosts.assert_nothing_left()


def test_a_host_that_has_lost_its_way_to_another_is_left_out(tmp_path: Path) -> None:
    """Its agent lives; the checks before the next attempt find that it is of no use."""
    marker = tmp_path / "fails"
    source = f"""
    import os, pathlib, sys, time
    print("up", os.environ["LOCKSTEP_ATTEMPT"], os.environ["LOCKSTEP_NUM_PROCESSES"], flush=True)
    while os.environ["LOCKSTEP_ATTEMPT"] == "0":
        if pathlib.Path({str(marker)!r}).exists():
            sys.exit(3)
        time.sleep(0.05)
    """
    with ssh_hosts(tmp_path, "abc") as hosts:
        options = ["--hosts", "a,b,c", "--max-restarts", "1", "--min-hosts", "2"]
        started = hosts.start("a", hosts.run_command(tmp_path, source, *options))
        read_lines(started, 3, "up 0 3")
        hosts.separate("b", "c")
        marker.touch()
        out, err = started.communicate(timeout=TIMEOUT)
        said = err.decode()
        assert started.returncode == 0, said
        assert "going on with 2 hosts, 2 processes, without\n" in said
        assert re.search(r"b +problem +network +no route between b \(10.9.0.2\) and c", said)
        assert sorted(out.decode().splitlines()) == ["[0@a] up 1 2", "[1@c] up 1 2"]
        hosts.assert_nothing_left()
