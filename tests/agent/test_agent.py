"""The agent of ``lockstep worker``: to the launcher it is the program, to others its memory."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.test_worker_command import CLEAN, WORKER, mpiexec
from of_this_jax import where_numbered
from processes import free_port
from support import MARK, marked, wait_until

TIMEOUT = 90
SAY = """
import os, signal, sys, time
def tell(number, frame):
    print("got", signal.Signals(number).name, flush=True)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, tell)
print("pid", os.getpid(), os.getppid(), os.getpgrp(), flush=True)
print("open", sorted(os.listdir("/proc/self/fd")), "KEEPER" in str(dict(os.environ)), flush=True)
exec(sys.argv[1])
"""
LOOP = """
import os, sys, time, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
jax.distributed.initialize()
rows = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
total = jax.jit(lambda x: x.sum())
try:
    for step in range(20):
        if step == 10 and jax.process_index() == 1:
            exec(sys.argv[1])
        ones = jax.make_array_from_process_local_data(rows, np.ones(1, np.float32))
        float(total(ones))
except Exception as error:
    sys.stdout.write(f"raised {error}\\n")
    sys.stdout.flush()
    time.sleep(1)
    sys.stdout.write("saved\\n")
    raise SystemExit(3)
"""


class Workers:
    """Some of the processes of a job of two, as torchrun would start them."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        (folder / "program.py").write_text(program)
        self.mark = f"agent-{os.urandom(8).hex()}"
        self.port = str(free_port())
        self.started: list[subprocess.Popen[str]] = []

    @property
    def left(self) -> list[Path]:
        """Private directories of runs."""
        return list((self.folder / "tmp").glob("lockstep-run-*"))

    @property
    def environ(self) -> dict[str, str]:
        return {**CLEAN, MARK: self.mark, "TMPDIR": str(self.folder / "tmp")}

    def start(
        self, rank: int, *args: str, prefix: Sequence[str] = (), options: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        where = {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port}
        process = subprocess.Popen(
            [*prefix, *WORKER, *options, str(self.folder / "program.py"), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environ, **place, **where},
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.communicate(timeout=TIMEOUT)


@pytest.fixture
def saying(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path, SAY)
    yield made
    made.end()


def pids(process: subprocess.Popen[str]) -> tuple[int, int, int]:
    """Of the program, of its parent, and its process group."""
    assert process.stdout is not None
    _, *words = process.stdout.readline().split()
    pid, parent, group = map(int, words)
    return pid, parent, group


def rest(process: subprocess.Popen[str]) -> str:
    """What is still to be read of its lines."""
    assert process.stdout is not None
    with Deadline(process):
        said = process.stdout.read()
        process.wait()
    return said


class Deadline(threading.Timer):
    """Kills a process that does not end in time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(TIMEOUT, process.kill)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.cancel()


def test_the_agent_is_the_parent_and_the_program_has_a_group_of_its_own(saying: Workers) -> None:
    process = saying.start(0, "pass")
    pid, parent, group = pids(process)
    assert (parent, group) == (process.pid, pid)
    said = rest(process)
    assert "False" in said, "the descriptor is for this process only"
    assert process.returncode == 0
    assert not saying.left


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit(5)", 5),
        ("raise ValueError", 1),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGABRT)", -signal.SIGABRT),
    ],
)
def test_it_ends_as_the_program_did(saying: Workers, code: str, status: int) -> None:
    process = saying.start(0, code)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == status
    assert not saying.left


def test_signals_are_passed_on_once(saying: Workers) -> None:
    process = saying.start(0, "while True: time.sleep(0.01)")
    pids(process)
    assert process.stdout is not None
    process.stdout.readline()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(process.pid, number)
        assert process.stdout.readline() == f"got {number.name}\n"
    os.kill(process.pid, signal.SIGINT)
    said = rest(process)
    assert "got SIG" not in said
    assert "KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT


def test_a_signal_that_the_launcher_has_us_ignore_is_not_passed_on(saying: Workers) -> None:
    process = saying.start(0, "time.sleep(1)", prefix=["nohup"])
    pids(process)
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGHUP)
    said = rest(process)
    assert process.returncode == 0
    assert "got SIG" not in said


def test_sigterm_is_followed_by_an_exception_and_then_by_the_end(saying: Workers) -> None:
    code = """
for _ in range(2):
    try:
        while True: time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    process = saying.start(0, code, options=["--grace", "1"])
    pids(process)
    process.send_signal(signal.SIGTERM)
    said = rest(process)
    lines = said.splitlines()
    assert lines.index("got SIGTERM") < lines.index("interrupted")
    assert lines.count("interrupted") == 1
    assert process.returncode == -signal.SIGKILL
    assert "process 0 was killed: it had not ended 1 s after SIGTERM (--grace)" in said


def test_the_program_outlives_its_agent_and_ends_with_the_launcher(saying: Workers) -> None:
    waits = "import subprocess, sys, time; subprocess.run(sys.argv[1:]); time.sleep(60)"
    launcher = [sys.executable, "-c", waits]
    process = saying.start(0, "while True: time.sleep(0.01)", prefix=launcher)
    pid, agent, _ = pids(process)
    assert agent != process.pid
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: agent not in marked(saying.mark), "the agent is gone")
    time.sleep(0.5)  # the guard has decided by then
    assert pid in marked(saying.mark), "the program goes on"
    process.kill()
    wait_until(lambda: not marked(saying.mark), "something is left behind")


def test_a_program_without_its_agent_leaves_nothing_behind(saying: Workers) -> None:
    process = saying.start(0, "time.sleep(2)")
    pids(process)
    process.kill()
    wait_until(lambda: not marked(saying.mark), "guard and sentinel are left behind")


def test_what_the_program_has_started_ends_with_the_launchers_group(saying: Workers) -> None:
    """As launchers that kill a process group do it."""
    code = "import subprocess; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    process = saying.start(0, code, prefix=["setsid"])
    pids(process)
    wait_until(lambda: len(marked(saying.mark)) == 5, "agent, guard, sentinel, program and child")
    os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: not marked(saying.mark), "something is left behind")


def test_a_group_that_is_killed_after_the_agent_takes_the_program_along(saying: Workers) -> None:
    process = saying.start(0, "time.sleep(60)", prefix=["setsid"])
    pid, _, _ = pids(process)
    wait_until(lambda: len(marked(saying.mark)) == 4, "agent, guard, sentinel and program")
    process.kill()
    time.sleep(0.5)  # the guard has decided by then
    assert pid in marked(saying.mark), "the program goes on"
    os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: not marked(saying.mark), "something is left behind")


def test_what_the_program_has_started_gets_the_launchers_signals(saying: Workers) -> None:
    code = "import subprocess; sys.exit(10 - subprocess.Popen(['sleep', '60']).wait())"
    process = saying.start(0, code)
    pids(process)
    wait_until(lambda: len(marked(saying.mark)) == 5, "agent, guard, sentinel, program and child")
    process.send_signal(signal.SIGTERM)
    assert "got SIGTERM" in rest(process)
    assert process.returncode == 10 + signal.SIGTERM


def test_a_launcher_that_ignores_its_children_is_no_hindrance(saying: Workers) -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = saying.start(0, "sys.exit(4)", prefix=[sys.executable, "-c", ignoring])
    rest(process)
    assert process.returncode == 4


def test_at_a_terminal_it_stops_with_the_program(saying: Workers) -> None:
    """Ctrl-Z: the shell that waits for us is told."""
    shell, terminal = pty.openpty()
    pid = os.fork()
    if pid == 0:
        signal.alarm(TIMEOUT)  # with it ends what is read and waited for below
        os.login_tty(terminal)
        place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        where = {**saying.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2345"}
        program = str(saying.folder / "program.py")
        if (job := os.fork()) == 0:  # what we are is the shell, and this is its job
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execve(WORKER[0], [*WORKER, program, "time.sleep(60)"], where)
        _, status = os.waitpid(job, os.WUNTRACED)
        os._exit(7 if os.WIFSTOPPED(status) else 1)
    os.close(terminal)
    said = b""
    while b"open" not in said:
        said += os.read(shell, 4096)
    os.write(shell, b"\x1a")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_without_room_for_a_private_directory_the_program_runs_all_the_same(
    saying: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = saying.start(0, "sys.exit(6)", prefix=["env", "TMPDIR=/nonexistent"])
    said = rest(process)
    assert process.returncode == 6
    assert "cannot create a private directory in /nonexistent" in said
    assert "The job goes on" in said


def test_it_stops_and_goes_on_with_the_program(saying: Workers) -> None:
    process = saying.start(0, "while True: time.sleep(0.01)")
    pid, _, _ = pids(process)

    def state(of: int) -> str:
        return Path(f"/proc/{of}/stat").read_text().rpartition(")")[2].split()[0]

    os.kill(process.pid, signal.SIGTSTP)
    wait_until(lambda: state(pid) == state(process.pid) == "T", "stopped")
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: "T" not in state(pid) + state(process.pid), "going on")


def test_a_program_that_cannot_be_started_is_an_error(saying: Workers) -> None:
    process = saying.start(0, "pass", prefix=["sh", "-c", 'ulimit -n 3; exec "$@"', "sh"])
    said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode not in (0, None)
    assert said.strip()


@pytest.fixture
def looping(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path, LOOP)
    yield made
    made.end()


def mpirun(job: Workers, code: str) -> subprocess.CompletedProcess[str]:
    worker = [*WORKER, "--log-dir", str(job.folder / "logs"), str(job.folder / "program.py"), code]
    return subprocess.run(
        [mpiexec(), "-n", "2", *worker],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=job.environ,
        check=False,
    )


def test_under_mpiexec_the_others_raise_and_save_before_all_is_killed(looping: Workers) -> None:
    done = mpirun(looping, "os.kill(os.getpid(), 9)")
    assert done.returncode != 0
    told = r"raised .*process 1 \(pid \d+ on .*\) was killed by SIGKILL \(signal 9\) after 10"
    assert re.search(told, done.stdout), done
    assert "saved" in done.stdout, done
    wait_until(lambda: not marked(looping.mark), "a process is left behind")
    assert not looping.left


def test_sigterm_to_one_agent_stops_its_program_and_the_other_raises(looping: Workers) -> None:
    """JAX's preemption notifier swallows the signal itself."""
    code = """
print("steps", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
    options = ["--grace", "4", "--log-dir", str(looping.folder / "logs")]
    processes = [looping.start(rank, code, options=options) for rank in range(2)]
    said = ""
    while "steps" not in said:
        assert processes[1].stdout is not None
        line = processes[1].stdout.readline()
        assert line, said
        said += line
    processes[1].send_signal(signal.SIGTERM)
    said += rest(processes[1])
    assert "interrupted\n" in said
    assert "stopped at" in said
    assert processes[1].returncode == -signal.SIGINT
    other = rest(processes[0])
    assert re.search(r"raised .*process 1 \(pid \d+ on .*\)", other), other
    assert processes[0].returncode == 3
    [run] = (looping.folder / "logs").iterdir()
    assert (run / "attempt_0/process_1/recorder.bin").exists()
    wait_until(lambda: not marked(looping.mark), "a process is left behind")


@pytest.mark.full
def test_a_job_goes_on_when_an_agent_is_killed(looping: Workers) -> None:
    code = "print('steps', flush=True); time.sleep(3)"
    processes = [looping.start(rank, code) for rank in range(2)]
    assert processes[1].stdout is not None
    while "steps" not in (line := processes[1].stdout.readline()):
        assert line
    processes[1].kill()
    said = rest(processes[0])
    assert processes[0].returncode == 0, said
    assert "raised" not in said
    wait_until(lambda: not marked(looping.mark), "a process is left behind", 30)


def test_a_program_that_ends_well_in_its_own_way_is_not_held_back(looping: Workers) -> None:
    """With another one that goes on: `os._exit(0)` is a habit of programs with slow ends."""
    processes = [looping.start(rank, "os._exit(0)") for rank in range(2)]
    processes[1].wait(TIMEOUT)
    # Process 0 raises when process 1 has gone, and saves for a second.
    assert (processes[0].poll(), processes[1].returncode) == (None, 0)
    assert "its last: 10 x program.py:" in rest(processes[0])
    looping.end()


def test_the_records_of_a_failed_job_are_kept_for_the_report(looping: Workers) -> None:
    done = mpirun(looping, "sys.exit(4)")
    where = looping.folder / "logs"
    [run] = where.iterdir()
    assert f"lockstep: for details: lockstep report {run}" in done.stderr, done
    report = subprocess.run(
        [sys.executable, "-m", "lockstep", "report", str(where)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=looping.environ,
        check=False,
    )
    assert report.returncode == 1, report
    assert re.search(r"process 1 .* failed after 10 collectives: sys\.exit\(4\)", report.stdout)
    called = "10 x all-reduce (sum) of 1 x f32" + where_numbered(", ")
    assert called in report.stdout, report.stdout


@pytest.mark.full
def test_a_live_job_is_shown_by_the_pid_of_a_agent(looping: Workers) -> None:
    """As `lockstep report` and `lockstep top` find it."""
    code = "time.sleep(60)"
    started = [looping.start(rank, code) for rank in range(2)]
    try:
        words = [sys.executable, "-m", "lockstep", "report", "--pid", str(started[0].pid)]
        end = time.monotonic() + TIMEOUT
        said = ""
        while "10 x all-reduce" not in said and time.monotonic() < end:
            time.sleep(0.5)
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
            said = done.stdout
        assert "process 1" in said
        assert said.count("10 x all-reduce") == 2, said
    finally:
        looping.end()
