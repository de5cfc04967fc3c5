"""A command that ends with another process, also with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.system import process_tree
from processes import read_lines
from support import wait_until

TETHER = [sys.executable, "-P", "-m", "lockstep.notebook.controller_guard"]
SLOW_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file: file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        return process_tree.stat(pid)[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("killed", ["the other process", "the tether itself"])
def test_a_kill_ends_the_command(killed: str, tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    file = tmp_path / "pids"
    words = [str(other.pid), "--", sys.executable, "-c", SLOW_CHILD, str(file)]
    tether = subprocess.Popen([*TETHER, *words])
    pids: list[int] = []
    try:
        wait_until(file.exists, "the child")
        pids = [int(word) for word in file.read_text().split()]
        (other if killed == "the other process" else tether).kill()
        # Of a tether that is killed, the kernel ends the command only.
        ended = pids[: 2 if "other" in killed else 1]
        wait_until(lambda: all(is_gone(pid) for pid in ended), f"an end of {ended}")
        if killed == "the other process":
            assert tether.wait(10) == 1
    finally:
        for process in (other, tether):
            process.kill()
            process.wait(10)
        process_tree.kill({pid for pid in pids if not is_gone(pid)})


def test_status_and_signals_are_passed_on() -> None:
    def run(program: str) -> subprocess.Popen[str]:
        words = [str(os.getpid()), "--", sys.executable, "-c", program]
        return subprocess.Popen([*TETHER, *words], stdout=subprocess.PIPE, text=True)

    with run("raise SystemExit(7)") as quick:
        assert quick.wait(30) == 7
    with run("import time; print('up', flush=True); time.sleep(600)") as slow:
        read_lines(slow, 1)
        slow.terminate()
        assert slow.wait(30) == 128 + signal.SIGTERM


def test_nothing_starts_for_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as other:
        other.wait(10)
    ended = subprocess.run(
        [*TETHER, str(other.pid), "--", "echo", "x"], capture_output=True, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (1, b"")


@pytest.mark.full
def test_the_folder_of_a_command_that_must_be_killed_is_removed(tmp_path: Path) -> None:
    notebook = tmp_path / "lockstep-run-notebook"
    notebook.mkdir()
    with subprocess.Popen(["sleep", "600"]) as other:
        words = [str(other.pid), "--", "sh", "-c", "trap '' TERM; echo up; sleep 600"]
        with subprocess.Popen(
            [*TETHER, *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "IPP_PROFILE_DIR": str(notebook)},
        ) as tethered:
            read_lines(tethered, 1)
            other.kill()
            assert tethered.wait(30) == 1
    assert list(tmp_path.iterdir()) == []
