"""Hosts that are lost, replaced by spares, and come back: agents of this machine alone.

`tests/hosts/test_restart_on_hosts.py` has the same on hosts with an sshd, a network and a power
switch of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from own_address import networked, own_address
from support import Run, assert_unsaid, marked, start_lockstep, wait_until

pytestmark = networked

WRAPPER = """#!/bin/bash
# In the place of ssh: the last words are a host's name and a command, which runs on this machine.
host="${{@: -2:1}}"
[ -e {folder}/down_$host ] && {{ echo "$host is down" >&2; exit 255; }}
[ -e {folder}/env_$host ] && source {folder}/env_$host
exec env LOCKSTEP_HOST_ID=$host SSH_CONNECTION="{address} 1 {address} 22" sh -c "${{@: -1}}"
"""
PROGRAM = """
import os, pathlib, signal, time
number, attempt = os.environ["LOCKSTEP_PROCESS_ID"], os.environ["LOCKSTEP_ATTEMPT"]
count, host = os.environ["LOCKSTEP_NUM_PROCESSES"], os.environ["LOCKSTEP_HOST_ID"]
folder = pathlib.Path({folder!r})
(folder / f"up_{{attempt}}_{{number}}_{{count}}_{{host}}_{{os.getppid()}}").touch()
while not (folder / f"end_{{attempt}}").exists():
    time.sleep(0.02)
"""

TRAINING = """
import os, pathlib, time
import jax, lockstep
jax.distributed.initialize()
attempt, me = os.environ["LOCKSTEP_ATTEMPT"], jax.process_index()
folder = pathlib.Path({folder!r})
saved = folder / "step"
first = int(saved.read_text()) if saved.exists() else 0
print("attempt", attempt, "begins at", first, "on", jax.process_count(), flush=True)
(folder / f"up_{{attempt}}_{{me}}_x_{{os.environ['LOCKSTEP_HOST_ID']}}_{{os.getppid()}}").touch()
step = first
while not (folder / f"end_{{attempt}}").exists():
    time.sleep(0.02)
    step += 1
    if lockstep.should_stop():
        print("saves", step, flush=True)
        if me == 0:
            saved.write_text(str(step))
        break
"""

CATCHES = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('noted', flush=True))"


class Hosts:
    """Agents of this machine as hosts, which can be killed and kept down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ssh = folder / "ssh"
        self.ssh.write_text(WRAPPER.format(folder=folder, address=own_address()))
        self.ssh.chmod(0o755)

    def start(self, *options: str, program: str = PROGRAM) -> AbstractContextManager[Run]:
        words = ["--ssh", str(self.ssh), "--grace", "1", *options]
        return start_lockstep(words, textwrap.dedent(program.format(folder=str(self.folder))))

    def ups(self, attempt: int) -> dict[int, tuple[str, int]]:
        """The host and the agent's pid of each process of an attempt, which has started them."""
        found = (path.name.split("_") for path in self.folder.glob(f"up_{attempt}_*"))
        return {int(number): (host, int(pid)) for _, _, number, _, host, pid in found}

    def wait_for(self, attempt: int, count: int) -> dict[int, tuple[str, int]]:
        what = f"{count} processes of attempt {attempt}"
        wait_until(lambda: len(self.ups(attempt)) == count, what, 60)
        return self.ups(attempt)

    def lose(self, agent: int, name: str, down: bool = True) -> None:
        """Kills an agent, and lets none start there if the host is to stay ``down``."""
        if down:
            (self.folder / f"down_{name}").touch()
        os.kill(agent, signal.SIGKILL)

    def back(self, name: str) -> None:
        (self.folder / f"down_{name}").unlink()

    def end(self, attempt: int) -> None:
        (self.folder / f"end_{attempt}").touch()


def agents_of(run: Run, name: str) -> list[int]:
    """The processes of a host that runs none of the job."""
    environ = f"LOCKSTEP_HOST_ID={name}".encode()
    found = []
    for pid in marked(run.mark):
        with contextlib.suppress(OSError):
            if environ in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def kill_agents(run: Run, name: str) -> None:
    """Kills the agent of a host that runs none of the job, and its guard."""
    for pid in agents_of(run, name):
        with contextlib.suppress(ProcessLookupError):  # each of the two ends the other
            os.kill(pid, signal.SIGKILL)


def read_until(run: Run, words: str, seconds: float = 60.0) -> str:
    """What the launcher says, up to the line that has ``words``."""
    assert run.process.stderr is not None
    said, end = b"", time.monotonic() + seconds
    while words.encode() not in said:
        left = max(0.0, end - time.monotonic())
        ready, _, _ = select.select([run.process.stderr], [], [], left)
        data = os.read(run.process.stderr.fileno(), 1 << 16) if ready else b""
        assert data, f"not said within {seconds:g} s: {words}\n{said.decode()}"
        said += data
    return said.decode()


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def ran(ups: dict[int, tuple[str, int]]) -> dict[int, str]:
    return {number: host for number, (host, _) in sorted(ups.items())}


def test_a_spare_takes_the_processes_of_a_lost_host(hosts: Hosts) -> None:
    options = ["--hosts", "a:2,b,c,d:2", "--spares", "1", "--max-restarts", "3"]
    options += ["--log-dir", str(hosts.folder / "logs")]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 4)
        assert ran(first) == {0: "a", 1: "a", 2: "b", 3: "c"}
        hosts.lose(first[2][1], "b")
        assert ran(hosts.wait_for(1, 4)) == {0: "a", 1: "a", 2: "d", 3: "c"}
        hosts.end(1)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr
    assert "d takes the place of b, which was lost, with process 2" in result.stderr
    assert_unsaid("going on with", result.stderr)
    assert re.search(r"attempt 1 starts on 3 of 3 hosts, [\d.]+ s after the failure", result.stderr)
    assert re.search(r"^  host lost +1 ", result.stderr, re.MULTILINE)
    [path] = hosts.folder.glob("logs/run_*/restarts.json")
    [restart] = json.loads(path.read_text())["restarts"]
    changes = {"lost": ["b"], "replaced": [["b", "d"]], "in_use": 3, "seats": 3}
    assert (restart["cause"], restart["hosts"]) == ("host lost", changes)


@pytest.mark.full
def test_a_spare_that_is_lost_too_leaves_fewer_hosts(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3", "--min-hosts", "1"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        hosts.lose(first[1][1], "b")
        second = hosts.wait_for(1, 2)
        assert ran(second) == {0: "a", 1: "c"}
        hosts.lose(second[0][1], "a")
        assert ran(hosts.wait_for(2, 1)) == {0: "c"}
        hosts.end(2)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr
    assert "going on with 1 host, 1 process, without\n" in result.stderr


@pytest.mark.full
def test_a_spare_that_does_not_pass_the_checks_is_no_help(hosts: Hosts) -> None:
    """The lost host is reached again then, as without a spare."""
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3", "--check-timeout", "1"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        for pid in agents_of(run, "c"):
            os.kill(pid, signal.SIGSTOP)
        hosts.lose(first[1][1], "b", down=False)
        said = read_until(run, "attempt 1 starts on 2 of 2 hosts")
        assert "spare c: agent no answer within 1 s (facts) (fix: check the load" in said
        assert ran(hosts.wait_for(1, 2)) == {0: "a", 1: "b"}
        hosts.end(1)
        assert run.finish(60).status == 0


@pytest.mark.full
def test_two_hosts_at_once_of_which_one_can_be_replaced(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c,d", "--spares", "1", "--max-restarts", "3", "--min-hosts", "1"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 3)
        (hosts.folder / "down_b").touch()
        hosts.lose(first[0][1], "a")
        hosts.lose(first[1][1], "b")
        assert ran(hosts.wait_for(1, 2)) == {0: "d", 1: "c"}
        hosts.end(1)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr
    assert "d takes the place of a, which was lost, with process 0" in result.stderr
    assert "going on with 2 hosts, 2 processes, without\n" in result.stderr


@pytest.mark.full
def test_a_launcher_that_stood_still_goes_on_with_all_hosts(hosts: Hosts) -> None:
    """The agents in use have ended meanwhile, and no host is to blame, however often that happens.

    The spare is left, because its lease is longer.
    """
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "9"]
    with hosts.start(*options) as run:
        for attempt in range(4):
            agents = hosts.wait_for(attempt, 2)
            os.kill(run.process.pid, signal.SIGSTOP)
            for name, pid in agents.values():
                hosts.lose(pid, name, down=False)
            os.kill(run.process.pid, signal.SIGCONT)
        assert sorted(ran(hosts.wait_for(4, 2)).values()) == ["a", "b"]
        hosts.end(4)
        result = run.finish(60)
    assert result.status == 0, result.stderr
    assert_unsaid("is not used any more", result.stderr)


def test_all_hosts_are_checked_before_the_start_and_spares_too(hosts: Hosts) -> None:
    (hosts.folder / "down_c").touch()
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3"]
    with hosts.start(*options) as run:
        result = run.finish(60)
    assert result.status == 1
    assert "nothing was started: 1 problem on 1 of 3 hosts" in result.stderr
    assert "c is down" in result.stderr
    assert hosts.ups(0) == {}


@pytest.mark.full
def test_a_spare_whose_agent_ends_is_named_and_comes_back(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        kill_agents(run, "c")
        said = read_until(run, "c answers again: it is a spare from now on")
        assert "lockstep: spare c: its host was lost: " in said
        hosts.lose(first[1][1], "b")
        assert ran(hosts.wait_for(1, 2)) == {0: "a", 1: "c"}
        hosts.end(1)
        assert run.finish(60).status == 0


@pytest.mark.full
def test_a_host_that_returns_joins_at_the_next_restart(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "3", "--min-hosts", "1"]
    with hosts.start(*options) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        second = hosts.wait_for(1, 2)
        assert ran(second) == {0: "a", 1: "c"}
        hosts.back("b")
        read_until(run, "b answers again: it takes part from the next restart on")
        hosts.lose(second[1][1], "c", down=False)
        assert ran(hosts.wait_for(2, 3)) == {0: "a", 1: "b", 2: "c"}
        hosts.end(2)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr


def test_grow_asks_the_program_to_save_and_starts_again_on_all_hosts(hosts: Hosts) -> None:
    options = ["--hosts", "a,b", "--max-restarts", "1", "--min-hosts", "1", "--grow"]
    with hosts.start(*options, program=TRAINING) as run:
        hosts.lose(hosts.wait_for(0, 2)[1][1], "b")
        hosts.wait_for(1, 1)
        hosts.back("b")
        read_until(run, "b answers again: the program is asked to end, to start again with it")
        assert ran(hosts.wait_for(2, 2)) == {0: "a", 1: "b"}
        hosts.end(2)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr
    assert re.search(r"^  more hosts +1 ", result.stderr, re.MULTILINE)
    [saved] = [line for line in result.stdout.splitlines() if "saves" in line]
    step = saved.split()[-1]
    assert f"[0@a] attempt 2 begins at {step} on 2" in result.stdout.splitlines()


@pytest.mark.full
def test_a_program_that_does_not_ask_is_interrupted_and_starts_again(hosts: Hosts) -> None:
    options = ["--hosts", "a,b", "--max-restarts", "1", "--min-hosts", "1", "--grow", "1"]
    with hosts.start(*options, program=CATCHES + PROGRAM) as run:
        hosts.lose(hosts.wait_for(0, 2)[1][1], "b")
        hosts.wait_for(1, 1)
        hosts.back("b")
        assert ran(hosts.wait_for(2, 2)) == {0: "a", 1: "b"}
        hosts.end(2)
        result = run.finish(60)
    assert result.status == 0, result.stderr
    assert "[0] noted" in result.stdout.splitlines()


SAVES = """
import time
attempt = os.environ["LOCKSTEP_ATTEMPT"]
def save(*_):
    if attempt == "1":
        print("saves", flush=True)
        {fault}
signal.signal(signal.SIGTERM, save)
"""
OOM = "if os.environ['LOCKSTEP_PROCESS_ID'] == '0': os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.full
def test_a_process_that_is_killed_while_it_saves_is_a_failure(hosts: Hosts) -> None:
    """The others, which save too, do not keep it waiting for all of ``--grow``'s time."""
    options = ["--hosts", "a,b,c", "--max-restarts", "2", "--min-hosts", "2", "--grow", "300"]
    saves = "import os, signal" + SAVES.replace("{fault}", OOM)
    with hosts.start(*options, program=saves + PROGRAM) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.wait_for(1, 2)
        hosts.back("b")
        assert ran(hosts.wait_for(2, 3)) == {0: "a", 1: "b", 2: "c"}
        hosts.end(2)
        result = run.finish(60)
    assert result.status == 0, result.stderr
    assert "process 0 of 2 on a failed first: killed by SIGKILL" in result.stderr
    assert "attempt 1 has failed; starting again (1 restart left)" in result.stderr
    assert re.search(r"^  process failed +1 ", result.stderr, re.MULTILINE)
    assert_unsaid("more hosts", result.stderr)


@pytest.mark.full
def test_an_error_of_all_processes_while_they_save_is_a_failure_with_records(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "1", "--min-hosts", "2", "--grow"]
    saves = "multihost_utils.process_allgather(jax.numpy.ones(2 + me))"
    program = TRAINING.replace('print("saves", step, flush=True)', saves)
    program = "from jax.experimental import multihost_utils" + program
    with hosts.start(*options, program=program) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.wait_for(1, 2)
        hosts.back("b")
        result = run.finish(100)
        kept = "lockstep-failed-*/*/attempt_1/process_*/recorder.bin"
        assert len(list(run.folder.glob(kept))) == 2
    assert result.status == 1
    assert re.search(r"process \d of 2 on [ac] failed first: process 0 .* called", result.stderr)
    assert hosts.ups(2) == {}


@pytest.mark.full
def test_ctrl_c_after_a_process_has_ended_by_the_request_reports_no_failure(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "1", "--min-hosts", "2", "--grow", "300"]
    program = """
import os, pathlib, signal
if os.environ["LOCKSTEP_PROCESS_ID"] == "0":
    (pathlib.Path({folder!r}) / "pid").write_text(str(os.getpid()))
else:
    signal.signal(signal.SIGTERM, lambda *_: print("noted", flush=True))
"""
    with hosts.start(*options, program=program + PROGRAM) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.wait_for(1, 2)
        hosts.back("b")
        read_until(run, "the program is asked to end")
        pid = int((hosts.folder / "pid").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of process 0", 30)
        run.process.send_signal(signal.SIGINT)
        result = run.finish(60)
    assert result.status == 130, result.stderr
    assert "stopped by SIGINT" in result.stderr
    assert_unsaid("failed first", result.stderr)


@pytest.mark.full
def test_ctrl_c_after_the_request_is_the_end(hosts: Hosts) -> None:
    options = ["--hosts", "a,b", "--max-restarts", "1", "--min-hosts", "1", "--grow"]
    with hosts.start(*options, program=CATCHES + PROGRAM) as run:
        hosts.lose(hosts.wait_for(0, 2)[1][1], "b")
        hosts.wait_for(1, 1)
        hosts.back("b")
        read_until(run, "the program is asked to end")
        run.process.send_signal(signal.SIGINT)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 130
    assert hosts.ups(2) == {}


@pytest.mark.full
def test_ctrl_c_while_the_output_before_the_next_attempt_waits_is_the_end(hosts: Hosts) -> None:
    """All processes have ended then, and the reader of the output takes nothing."""
    options = ["--hosts", "a,b", "--max-restarts", "1", "--min-hosts", "1", "--grow", "300"]
    program = """
import os, pathlib, signal
(pathlib.Path({folder!r}) / "pid").write_text(str(os.getpid()))
def save(*_):
    for i in range(100):
        print("x" * 999, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
"""
    with hosts.start(*options, program=program + PROGRAM) as run:
        hosts.lose(hosts.wait_for(0, 2)[1][1], "b")
        hosts.wait_for(1, 1)
        pid = int((hosts.folder / "pid").read_text())
        hosts.back("b")
        read_until(run, "the program is asked to end")
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of process 0", 30)
        time.sleep(3)  # until nothing is left but to write
        run.process.send_signal(signal.SIGINT)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 130, result.stderr
    assert hosts.ups(2) == {}


@pytest.mark.full
def test_the_end_of_the_output_after_the_request_ends_the_job(hosts: Hosts) -> None:
    options = ["--hosts", "a,b", "--max-restarts", "1", "--min-hosts", "1", "--grow", "300"]
    with hosts.start(*options, program=CATCHES + PROGRAM) as run:
        hosts.lose(hosts.wait_for(0, 2)[1][1], "b")
        hosts.wait_for(1, 1)
        assert run.process.stdout is not None
        run.process.stdout.close()
        hosts.back("b")
        run.process.wait(60)
        assert hosts.ups(2) == {}
    assert run.process.returncode == 128 + signal.SIGPIPE


@pytest.mark.full
def test_a_program_that_has_finished_by_then_is_not_started_again(hosts: Hosts) -> None:
    options = ["--hosts", "a,b", "--max-restarts", "1", "--min-hosts", "1", "--grow"]
    once = TRAINING.replace("    if lockstep.", "    if step == first + 1 and lockstep.")
    with hosts.start(*options, program=once) as run:
        hosts.lose(hosts.wait_for(0, 2)[1][1], "b")
        hosts.wait_for(1, 1)
        hosts.back("b")
        read_until(run, "the program is asked to end")
        hosts.end(1)
        result = run.finish(60)
    assert result.status == 0, result.stderr
    assert hosts.ups(2) == {}


@pytest.mark.full
def test_a_host_that_returns_with_another_jax_is_refused(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "3", "--min-hosts", "1"]
    other = hosts.folder / "other" / "jax-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.0.1\n")
    with hosts.start(*options) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.wait_for(1, 2)
        (hosts.folder / "env_b").write_text(f"export PYTHONPATH={other.parent}\n")
        hosts.back("b")
        read_until(run, "b answers again, and is refused: jax 0.0.1, but ")
        hosts.end(1)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr


@pytest.mark.full
def test_a_host_that_flaps_is_not_used_any_more(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "1"]
    with hosts.start(*options) as run:
        hosts.wait_for(0, 2)
        for _ in range(2):
            kill_agents(run, "c")
            read_until(run, "c answers again: it is a spare from now on")
        kill_agents(run, "c")
        read_until(run, "c was lost 3 times, and is not used any more")
        hosts.lose(hosts.ups(0)[1][1], "b")
        result = run.finish(60)
    assert result.status == 1
    said = result.stderr.partition("1 of 2 hosts are left, and the job needs 2")[2]
    assert "b is down" in said
    assert "\n  c was lost 3 times, and is not used any more\n" in said


@pytest.mark.full
def test_too_few_hosts_are_left_and_each_is_named(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "3", "--min-hosts", "2"]
    with hosts.start(*options) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.lose(hosts.wait_for(1, 2)[1][1], "c")
        result = run.finish(60)
    assert result.status == 1
    said = result.stderr.partition("1 of 3 hosts are left, and the job needs 2\n")[2]
    assert re.search(r"^  c +problem +ssh +failed: c is down$", said, re.MULTILINE)
    assert re.search(r"^  b was lost, and has not answered since$", said, re.MULTILINE)
