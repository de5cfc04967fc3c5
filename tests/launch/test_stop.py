"""However a job ends, nothing of it is left: signals, kill -9, grandchildren, closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.launch.supervisor import REPEATED_SIGNAL
from lockstep.processes import run_dir
from lockstep.system import process_tree
from support import Result, Run, assert_unsaid, marked, run_lockstep, start_lockstep, wait_until

READY = """
import os, pathlib, signal, subprocess, sys, time
i = int(os.environ["LOCKSTEP_PROCESS_ID"])
here = pathlib.Path(os.environ["TMPDIR"])
def ready(): (here / f"ready_{i}").touch()
"""
SLEEP = (
    READY
    + """
ready()
try:
    time.sleep(100)
finally:
    print("finally", flush=True)
"""
)
STUBBORN = (
    READY
    + """
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: (here / f"got_{i}_{number}").touch())
ready()
while True: time.sleep(100)
"""
)
WITH_GRANDCHILDREN = (
    READY
    + """
subprocess.Popen(["sleep", "100"])
subprocess.Popen(["sleep", "100"], start_new_session=True)
subprocess.Popen(["sh", "-c", "trap '' INT TERM; (sleep 100 & sleep 100) & sleep 100"])
ready()
time.sleep(100)
"""
)


def stopped(
    program: str, number: int, *options: str, forked: bool = True
) -> tuple[Result, set[str]]:
    """A job that gets a signal once two processes are ready, and the files that it has made."""
    with start_lockstep(["-n", "2", *options], program, forked=forked) as run:
        run.wait_files("ready_*", 2)
        run.process.send_signal(number)
        result = run.finish(60)
        return result, {path.name for path in run.folder.iterdir()}


def supervisor_of(run: Run) -> int:
    return next(p for p, parent in process_tree.parents().items() if parent == run.process.pid)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_stops_all(number: int, status: int) -> None:
    result, _ = stopped(SLEEP, number)
    assert result.status == status
    assert f"stopped by {signal.Signals(number).name}" in result.said_by_launcher
    assert "failed" not in result.said_by_launcher
    assert_unsaid("Traceback", result.stderr)
    if number == signal.SIGINT:
        assert result.by_process == {0: ["finally"], 1: ["finally"]}
        assert "stopped at" in result.stderr_by_process[1][0]
        assert "program.py:9" in result.stderr_by_process[1][0]


MANY = 150


def test_a_signal_is_obeyed_while_processes_are_being_started() -> None:
    many = ["--oversubscribe", "-n", str(MANY)]
    result, made = stopped(SLEEP, signal.SIGTERM, *many, forked=False)
    assert sum(name.startswith("ready_") for name in made) < MANY / 2
    assert result.status == 143
    assert "stopped by SIGTERM" in result.said_by_launcher


@pytest.mark.full
def test_a_failure_while_processes_are_being_started_is_the_headline() -> None:
    program = READY + "ready()\nif i == 0: raise ValueError('no data')\ntime.sleep(100)"
    options = ["--oversubscribe", "--grace", "2", "-n", str(MANY)]
    with start_lockstep(options, program) as run:
        result = run.finish(60)
        assert len(list(run.folder.glob("ready_*"))) < MANY / 2
    assert result.status == 1
    headline = f"process 0 of {MANY} failed first: ValueError: no data"
    assert headline in result.said_by_launcher


def test_a_program_may_save_its_state_on_sigterm_and_end_well() -> None:
    program = (
        READY
        + """
signal.signal(signal.SIGTERM, lambda number, frame: (print("saved", flush=True), sys.exit(0)))
ready()
while True: time.sleep(100)
"""
    )
    result, _ = stopped(program, signal.SIGTERM)
    assert result.by_process == {0: ["saved"], 1: ["saved"]}
    assert result.status == 0


def test_a_process_that_ignores_every_request_is_killed_after_the_grace_period() -> None:
    result, made = stopped(STUBBORN, signal.SIGTERM, "--grace", "0.6")
    # SIGTERM first, SIGINT halfway.
    assert made >= {f"got_{process}_{number}" for process in (0, 1) for number in (15, 2)}
    assert result.status == 143
    assert "killed because they did not end" in result.said_by_launcher


def test_a_second_ctrl_c_kills_at_once() -> None:
    with start_lockstep(["-n", "2", "--grace", "1000"], STUBBORN, forked=True) as run:
        run.wait_files("ready_*", 2)
        run.process.send_signal(signal.SIGINT)
        run.wait_files("got_*_2", 2)
        time.sleep(REPEATED_SIGNAL)  # until then it is the same Ctrl-C
        run.process.send_signal(signal.SIGINT)
        result = run.finish(30)
    assert result.status == 130
    assert result.said_by_launcher.splitlines() == [
        "lockstep: stopped by SIGINT",
        "lockstep: killed because they did not end within --grace: processes 0-1",
    ]


def test_a_job_that_is_stopped_while_python_starts_prints_no_traceback() -> None:
    result = run_lockstep([], READY + "if i == 0: os._exit(4)", n=4, expect_status=4)
    assert_unsaid("Traceback", result.stderr)


@pytest.mark.parametrize("victim", ["guard", "supervisor"])
def test_kill_9_of_the_launcher_leaves_nothing(victim: str) -> None:
    with start_lockstep(["-n", "2"], WITH_GRANDCHILDREN, forked=True) as run:
        run.wait_files("ready_*", 2)
        pid = run.process.pid if victim == "guard" else supervisor_of(run)
        assert len(marked(run.mark)) > 8
        os.kill(pid, signal.SIGKILL)
        result = run.finish(30)
    if victim == "supervisor":
        assert result.status == 137
        assert "supervising process was killed by SIGKILL" in result.said_by_launcher


def test_kill_9_of_both_halves_of_the_launcher_ends_the_processes() -> None:
    with start_lockstep(["-n", "2"], SLEEP, forked=True) as run:
        run.wait_files("ready_*", 2)
        (private,) = run.folder.glob("lockstep-run-*")
        assert private.stat().st_mode & 0o777 == 0o700
        os.utime(private, (0, 0))
        run_dir.sweep(run.folder)
        assert private.exists()  # that of a run that lives
        for pid in (supervisor_of(run), run.process.pid):
            os.kill(pid, signal.SIGKILL)
        run.finish(30, leaves=True)
        wait_until(lambda: not marked(run.mark), "the processes end")
        # The next run in the same place removes it.
        os.utime(private)
        run_dir.sweep(run.folder)
        assert private.exists()  # too young: it might be about to be locked
        os.utime(private, (0, 0))
        run_dir.sweep(run.folder)
        assert not private.exists()


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), 9)", "1 / 0"])
def test_grandchildren_end_with_the_job(end: str) -> None:
    program = WITH_GRANDCHILDREN.replace("time.sleep(100)\n", f"{end}\n")
    result = run_lockstep([], program, timeout=30, expect_status=None, forked=True)
    assert result.status == {"s": 0, "o": 137, "1": 1}[end[0]]
    if end == "sys.exit(0)":
        assert "processes that the program left running" in result.said_by_launcher


@pytest.mark.full
def test_shared_memory_of_a_killed_program_is_unlinked() -> None:
    program = (
        READY
        + """
from multiprocessing import shared_memory
if i == 1:
    print(shared_memory.SharedMemory(create=True, size=4096).name, flush=True)
    os.kill(os.getpid(), 9)
time.sleep(100)
"""
    )
    result = run_lockstep([], program, timeout=30, expect_status=137, forked=True)
    (name,) = result.by_process[1]
    assert not Path("/dev/shm", name).exists()


def test_a_reader_that_leaves_ends_the_job() -> None:
    program = READY + "while True: print('line', flush=True); time.sleep(0.01)"
    with start_lockstep(["-n", "2"], program) as run:
        assert run.process.stdout is not None
        assert b"line" in run.process.stdout.readline()
        run.process.stdout.close()
        assert run.process.wait(30) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("lines", ["print('line')", "while True: print('line')"])
def test_a_disk_that_is_full_is_said_and_ends_the_job(lines: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(lines)
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", str(tmp_path / "program.py")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False
        )
    assert done.returncode == 1
    said = "lockstep: standard output cannot be written: No space left on device\n"
    assert done.stderr.count(said) == 1


def test_a_reader_that_does_not_read_holds_up_no_signal() -> None:
    program = READY + "ready()\nwhile True: print('x' * 10_000)"
    with start_lockstep(["-n", "2"], program) as run:
        run.wait_files("ready_*", 2)
        time.sleep(0.5)  # the pipe and the launcher's own buffer fill up
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: len(marked(run.mark)) <= 2, "the processes end", 30)
        time.sleep(REPEATED_SIGNAL)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(30) == 130
        assert run.process.stderr is not None
        assert b"stopped by SIGINT" in run.process.stderr.read()


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    # As nohup does it.
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with start_lockstep(["-n", "1"], READY + "ready(); input(); print('alive')") as run:
            signal.signal(signal.SIGHUP, previous)
            run.wait_files("ready_*", 1)
            run.process.send_signal(signal.SIGHUP)
            result = run.finish(30, stdin=b"\n")
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert result.by_process == {0: ["alive"]}
    assert result.status == 0
