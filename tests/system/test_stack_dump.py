"""A process's stacks, asked for from outside, whatever it does at the moment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.processes import user_program
from lockstep.system import stack_dump
from processes import clean_environ
from support import run_lockstep, wait_until

INSTALL = """
import ctypes, os, pathlib, sys, threading, time
from lockstep.system import stack_dump
stack_dump.install(pathlib.Path(sys.argv[1]))
def ready():
    pathlib.Path(sys.argv[1]).with_suffix(".ready").touch()
"""


@contextlib.contextmanager
def running(program: str, path: Path) -> Iterator[int]:
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    process = subprocess.Popen(command, env=clean_environ())
    try:
        wait_until(path.with_suffix(".ready").exists, "the process is ready", 30)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_all_threads_show_where_they_are(tmp_path: Path) -> None:
    program = """
def waits_for_data():
    ready()
    time.sleep(100)
def main_loop():
    threading.Thread(target=waits_for_data, daemon=True).start()
    while True: pass
main_loop()
"""
    path = tmp_path / stack_dump.FILE
    with running(INSTALL + program, path) as pid:
        for _ in range(2):  # a second answer is not mixed up with the first
            text = stack_dump.request(pid, path, 10)
            assert text.count("in main_loop") == 1
            assert text.count("in waits_for_data") == 1


@pytest.mark.full
def test_each_of_several_requests_at_once_is_answered_whole(tmp_path: Path) -> None:
    program = """
def innermost():
    ready()
    while True: pass
def outer(depth):
    outer(depth - 1) if depth else innermost()
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
outer(30)
"""
    path = tmp_path / stack_dump.FILE
    with running(INSTALL + program, path) as pid, ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            requests = [pool.submit(stack_dump.request, pid, path, 10) for _ in range(2)]
            for text in (request.result() for request in requests):
                assert text.count("in innermost") == 1
                assert text.count(" (most recent call first)") == 2


IN_C = """
def stuck_in_c():
    ready()
    ctypes.PyDLL(None).sleep(100)  # keeps the interpreter's lock
stuck_in_c()
"""
BLOCKED = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {stack_dump.SIGNAL})
ready()
while True: time.monotonic()
"""


@pytest.mark.parametrize(
    ("program", "timeout", "words"),
    [(IN_C, 10, "in stuck_in_c"), (BLOCKED, 0.3, "did not answer within 0.3 s")],
    ids=["native code", "signal blocked"],
)
def test_native_code_answers_and_a_blocked_signal_does_not(
    program: str, timeout: float, words: str, tmp_path: Path
) -> None:
    path = tmp_path / stack_dump.FILE
    with running(INSTALL + program, path) as pid:
        assert words in stack_dump.request(pid, path, timeout)


def test_a_stopped_process_is_described(tmp_path: Path) -> None:
    path = tmp_path / stack_dump.FILE
    with running(INSTALL + "ready()\nwhile True: pass", path) as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: stack_dump._state(pid) == "T", "it is stopped")
        text = stack_dump.request(pid, path, 10)
        assert f"process {pid}: it is stopped, by a signal" in text
        assert "kill -CONT" in text
        # Nothing was sent: an answer would come too late.
        os.kill(pid, signal.SIGCONT)
        assert "most recent call first" in stack_dump.request(pid, path, 10)
        assert path.read_text().count("Current thread") == 1


def test_a_process_that_takes_no_request_is_described_and_not_killed(tmp_path: Path) -> None:
    path = tmp_path / stack_dump.FILE
    program = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).with_suffix(".ready").touch()
time.sleep(100)
"""
    with running(program, path) as pid:
        wait_until(lambda: ") S " in Path(f"/proc/{pid}/stat").read_text(), "it sleeps")
        text = stack_dump.request(pid, path, 10)
        assert f"The system says of process {pid}: it sleeps" in text
        assert "s of processor time" in text
        os.kill(pid, 0)


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert "there is no process" in stack_dump.request(process.pid, tmp_path / stack_dump.FILE)


def test_the_line_of_the_user_is_found_below_libraries() -> None:
    library = '  File "/usr/lib/python3/site-packages/jax/array.py", line 9 in _value\n'
    user = '  File "/home/me/train.py", line 12 in step\n'
    other = 'Thread 0x1 (most recent call first):\n  File "/home/me/other.py", line 1 in f\n\n'
    head = "Current thread 0x2 (most recent call first):\n"
    found = stack_dump.outside_libraries(other + head + library + user)
    assert found == "/home/me/train.py:12 in step"
    assert stack_dump.outside_libraries(head + library).endswith("jax/array.py:9 in _value")
    assert stack_dump.outside_libraries("No Python stacks.") == "No Python stacks."


def test_a_deep_recursion_is_cut_and_our_own_frames_are_left_out() -> None:
    ours = f'  File "{user_program.__file__}", line 5 in run'
    deep = "\n".join(f'  File "train.py", line {i} in f' for i in range(100))
    text = stack_dump.shortened(
        f"Thread 0x1 (most recent call first):\n{deep}\n{ours}\n\nThread 0x2:\n"
    )
    assert text.count("in f") == stack_dump.MAX_FRAMES - 1
    assert "  ... more frames\n\nThread 0x2:" in text
    assert user_program.__file__ not in text


def test_threads_of_lockstep_are_left_out_unless_a_line_of_the_user_runs_in_them(
    tmp_path: Path,
) -> None:
    program = """
from lockstep._jax_compat import lost_service
def of_the_user(): time.sleep(100)
def waiting(method, *args): lost_service.ending(method, *args)
threading.Thread(target=waiting, args=(time.sleep, 100), daemon=True).start()
threading.Thread(target=lost_service.ending, args=(of_the_user,), daemon=True).start()
time.sleep(0.5)
ready()
time.sleep(100)
"""
    path = tmp_path / stack_dump.FILE
    with running(INSTALL + program, path) as pid:
        threads = stack_dump.request(pid, path, 10).split("\n\n")
    in_them = [re.findall(r" in (waiting|of_the_user|<module>)$", t, re.MULTILINE) for t in threads]
    assert sorted(in_them) == [["<module>"], ["of_the_user"], ["waiting"]], threads


def test_the_processes_of_a_run_answer_requests() -> None:
    program = """
import os, pathlib
from lockstep import _run_files
from lockstep.system import stack_dump
me = int(os.environ["LOCKSTEP_PROCESS_ID"])
run = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"])
def the_line_that_waits():
    print(stack_dump.request(os.getpid(), _run_files.process_dir(run, 0, me) / stack_dump.FILE, 10))
the_line_that_waits()
"""
    result = run_lockstep([], program, forked=True)
    for process in range(2):
        text = "\n".join(result.by_process[process])
        assert "in the_line_that_waits" in text
        assert user_program.__file__ not in text
