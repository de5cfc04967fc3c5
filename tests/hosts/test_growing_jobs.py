"""`--grow`: a job whose hosts come back saves, ends, and starts again on all of them."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from hosts.agents_here import (
    CATCHES,
    PROGRAM,
    TRAINING,
    Hosts,
    ran,
    read_until,
)
from own_address import networked
from support import assert_unsaid, wait_until

pytestmark = networked


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


@pytest.mark.full
def test_grow_asks_the_program_to_save_and_starts_again_on_all_hosts(hosts: Hosts) -> None:
    with hosts.one_returns(program=TRAINING) as run:
        read_until(run, "b answers again: the program is asked to end, to start again with it")
        assert ran(hosts.wait_for(2, 2)) == {0: "a", 1: "b"}
        result = hosts.end_well(run, 2)
    assert re.search(r"^  more hosts +1 ", result.stderr, re.MULTILINE)
    [saved] = [line for line in result.stdout.splitlines() if "saves" in line]
    step = saved.split()[-1]
    assert f"[0@a] attempt 2 begins at {step} on 2" in result.stdout.splitlines()


@pytest.mark.full
def test_a_program_that_does_not_ask_is_interrupted_and_starts_again(hosts: Hosts) -> None:
    with hosts.one_returns("1", program=CATCHES + PROGRAM) as run:
        assert ran(hosts.wait_for(2, 2)) == {0: "a", 1: "b"}
        result = hosts.end_well(run, 2)
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
    saves = "import os, signal" + SAVES.replace("{fault}", OOM)
    with hosts.one_returns("300", names="abc", restarts=2, program=saves + PROGRAM) as run:
        assert ran(hosts.wait_for(2, 3)) == {0: "a", 1: "b", 2: "c"}
        result = hosts.end_well(run, 2)
    assert "process 0 of 2 on a failed first: killed by SIGKILL" in result.stderr
    assert "attempt 1 has failed; starting again (1 restart left)" in result.stderr
    assert re.search(r"^  process failed +1 ", result.stderr, re.MULTILINE)
    assert_unsaid("more hosts", result.stderr)


@pytest.mark.full
def test_an_error_of_all_processes_while_they_save_is_a_failure_with_records(hosts: Hosts) -> None:
    saves = "multihost_utils.process_allgather(jax.numpy.ones(2 + me))"
    program = TRAINING.replace('print("saves", step, flush=True)', saves)
    program = "from jax.experimental import multihost_utils" + program
    with hosts.one_returns(names="abc", program=program) as run:
        result = run.finish(100)
        kept = "lockstep-failed-*/*/attempt_1/process_*/recorder.bin"
        assert len(list(run.folder.glob(kept))) == 2
    assert result.status == 1
    assert re.search(r"process \d of 2 on [ac] failed first: process 0 .* called", result.stderr)
    assert hosts.ups(2) == {}


@pytest.mark.full
def test_ctrl_c_after_a_process_has_ended_by_the_request_reports_no_failure(hosts: Hosts) -> None:
    program = """
import os, pathlib, signal
if os.environ["LOCKSTEP_PROCESS_ID"] == "0":
    (pathlib.Path({folder!r}) / "pid").write_text(str(os.getpid()))
else:
    signal.signal(signal.SIGTERM, lambda *_: print("noted", flush=True))
"""
    with hosts.one_returns("300", names="abc", program=program + PROGRAM) as run:
        read_until(run, "the program is asked to end")
        pid = int((hosts.folder / "pid").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of process 0", 30)
        run.process.send_signal(signal.SIGINT)
        result = run.finish(60)
    assert result.status == 130, result.stderr
    assert "stopped by SIGINT" in result.stderr
    assert_unsaid("failed first", result.stderr)
    assert hosts.ups(2) == {}


@pytest.mark.full
def test_ctrl_c_while_the_output_before_the_next_attempt_waits_is_the_end(hosts: Hosts) -> None:
    """All processes have ended then, and the reader of the output takes nothing."""
    program = """
import os, pathlib, signal
(pathlib.Path({folder!r}) / "pid").write_text(str(os.getpid()))
def save(*_):
    for i in range(100):
        print("x" * 999, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
"""
    with hosts.one_returns("300", program=program + PROGRAM) as run:
        pid = int((hosts.folder / "pid").read_text())
        read_until(run, "the program is asked to end")
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of process 0", 30)
        time.sleep(3)  # until nothing is left but to write
        run.process.send_signal(signal.SIGINT)
        result = run.finish(60)
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
    once = TRAINING.replace("    if lockstep.", "    if step == first + 1 and lockstep.")
    with hosts.one_returns(program=once) as run:
        read_until(run, "the program is asked to end")
        hosts.end_well(run, 1)
    assert hosts.ups(2) == {}
