"""The agent of ``lockstep worker`` and its program: signals, ends, and what is left behind."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time

import pytest

from cluster_environs import torchrun
from lockstep.system.process_tree import stat
from processes import read_lines
from support import assert_unsaid, marked, wait_until
from worker.test_worker_command import WORKER
from worker.workers import TIMEOUT, Workers, pids, rest, workers_with

SAY = """
import os, signal, sys, time
def tell(number, frame):
    # print would raise where the signal comes during a print of the program below.
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, tell)
print("pid", os.getpid(), os.getppid(), os.getpgrp(), flush=True)
print("open", sorted(os.listdir("/proc/self/fd")), "LOCKSTEP_AGENT" in os.environ, flush=True)
exec(sys.argv[1])
"""
saying = workers_with(SAY)


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
    read_lines(process, 1, "")
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(process.pid, number)
        assert read_lines(process, 1, "") == [f"got {number.name}"]
    os.kill(process.pid, signal.SIGINT)
    said = rest(process)
    assert_unsaid("got SIG", said)
    assert "KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT


def test_a_signal_that_the_launcher_has_us_ignore_is_not_passed_on(saying: Workers) -> None:
    process = saying.start(0, "time.sleep(1)", prefix=["nohup"])
    pids(process)
    read_lines(process, 1, "")
    os.kill(process.pid, signal.SIGHUP)
    said = rest(process)
    assert process.returncode == 0
    assert_unsaid("got SIG", said)


def test_sigterm_is_followed_by_an_exception_and_then_by_the_end(saying: Workers) -> None:
    code = """
for _ in range(2):
    try:
        while True: time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    process = saying.start(0, code, options=["--grace", "2"])
    pids(process)
    process.send_signal(signal.SIGTERM)
    said = rest(process)
    told = [line for line in said.splitlines() if line in {"got SIGTERM", "interrupted"}]
    assert told == ["got SIGTERM", "interrupted"], said
    assert process.returncode == -signal.SIGKILL
    assert "process 0 was killed: it had not ended 2 s after SIGTERM (--grace)" in said


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
        where = {**saying.environ, **torchrun(0, 2, 2, 2345)}
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

    os.kill(process.pid, signal.SIGTSTP)
    wait_until(lambda: stat(pid)[0] == stat(process.pid)[0] == "T", "stopped")
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: "T" not in stat(pid)[0] + stat(process.pid)[0], "going on")


def test_a_program_that_cannot_be_started_is_an_error(saying: Workers) -> None:
    process = saying.start(0, "pass", prefix=["sh", "-c", 'ulimit -n 3; exec "$@"', "sh"])
    said, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode not in (0, None)
    assert said.strip()
