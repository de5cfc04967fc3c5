"""`lockstep top` as a person sees it: on a terminal, beside a job that runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep._errors import RecordError
from lockstep.flight_recorder import run_records
from lockstep.flight_recorder.run_records import Process
from lockstep.report import top
from of_this_jax import where_numbered
from processes import captured
from support import Run, assert_unsaid, start_lockstep, wait_until

WIDTH, HEIGHT = 130, 60
TRAINING = """
import os, sys, time, jax, jax.numpy as jnp
from pathlib import Path
jax.distributed.initialize()
folder = Path(os.environ["TMPDIR"])
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
stop = 0.0
while not total(jnp.full(1, stop)).addressable_data(0).sum():
    if jax.process_index() == 1:
        time.sleep(0.02)
    stop = float((folder / "stop").exists())
if "fail" in sys.argv:
    if jax.process_index() == 1:
        sys.exit(3)
    try:
        total(jnp.ones(1)).addressable_data(0).sum()
    except Exception:
        while not (folder / "seen").exists():
            time.sleep(0.02)
"""
PSUM = where_numbered(f"program.py:{TRAINING[: TRAINING.index('total =')].count(chr(10)) + 1}")
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal:
    """A terminal, and what a program has written to it."""

    def __init__(self, width: int) -> None:
        self.own, self.other = pty.openpty()
        fcntl.ioctl(self.other, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, width, 0, 0))
        self.modes = termios.tcgetattr(self.other)
        self._written = b""
        # Output that is not read would block the program.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(self.own, 65536):
                self._written += piece

    @property
    def written(self) -> str:
        return self._written.decode("utf-8", "replace")

    @property
    def plain(self) -> str:
        """Without what moves the cursor and gives colours."""
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.written).replace("\r", "")

    @property
    def pictures(self) -> list[str]:
        """Each picture begins with the headline, above the table of processes."""
        return re.findall(r"[^\n]*\n┏.*?collectives by line.*?└[─┴]*┘", self.plain, re.DOTALL)

    def close(self) -> None:
        os.close(self.other)
        self._reader.join(10)
        os.close(self.own)


@contextlib.contextmanager
def watched(
    *program_args: str, width: int = WIDTH
) -> Iterator[tuple[Run, Terminal, subprocess.Popen]]:
    """A job of two processes, and `lockstep top` at it."""
    with start_lockstep(
        ["-n", "2", "-d", "1", "--grace", "60"], TRAINING, program_args, forked=True
    ) as run:
        sites = "lockstep-run-*/attempt_0/process_*/sites.jsonl"
        wait_until(lambda: len(list(run.folder.glob(sites))) == 2, "collectives", 60)
        terminal = Terminal(width)
        command = ["top", "--pid", str(run.process.pid), "--interval", "0.2"]
        # These two, which pytest-xdist sets, would hide the terminal's size from the command.
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        top = subprocess.Popen(
            [sys.executable, "-m", "lockstep", *command],
            stdin=terminal.other,
            stdout=terminal.other,
            stderr=terminal.other,
            env={**environ, "TERM": "xterm-256color"},
            # The terminal's Ctrl-C goes to the processes of its session.
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )
        try:
            wait_until(lambda: len(terminal.pictures) > 3, f"pictures: {terminal.plain}", 60)
            yield run, terminal, top
        finally:
            top.kill()
            top.wait(30)
            terminal.close()


FAILS_AT_FIRST = """
import os, sys, time
if os.environ["LOCKSTEP_ATTEMPT"] == "0":
    sys.exit(os.environ["LOCKSTEP_PROCESS_ID"] == "1")
import lockstep
lockstep.continues_from(7)
"""


@pytest.mark.full
@pytest.mark.parametrize("logged", [False, True])
def test_top_says_what_restarts_have_cost(logged: bool, tmp_path: Path) -> None:
    logs = ["--log-dir", str(tmp_path / "logs")] if logged else []
    options = ["-n", "2", "-d", "1", "--max-restarts", "1", *logs]
    with start_lockstep(options, FAILS_AT_FIRST + TRAINING, forked=True) as run:
        sites = "lockstep-run-*/attempt_1/process_*/sites.jsonl"
        wait_until(lambda: len(list(run.folder.glob(sites))) == 2, "collectives", 60)
        command = ["top", "--pid", str(run.process.pid), "--once"]
        words = [sys.executable, "-m", "lockstep", *command]
        shown = captured(words)
        end_of_job(run)
    cost = r"1 restart, ([\d.]+) s lost: process failed 1 \(\1 s\); attempt 1 from step 7"
    assert re.search(cost, shown.stdout), shown


def end_of_job(run: Run) -> None:
    (run.folder / "stop").touch()
    run.finish(60)


def assert_sane(terminal: Terminal) -> None:
    """The cursor is seen again, no mode of the terminal is changed, nothing but text was said."""
    text = terminal.written
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) > 0
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
    assert termios.tcgetattr(terminal.other) == terminal.modes
    assert terminal.plain.endswith("\n")
    assert_unsaid("Traceback", text)


def test_a_live_job_is_shown_and_top_ends_with_it() -> None:
    with watched() as (run, terminal, top):
        end_of_job(run)
        assert top.wait(60) == 0, terminal.plain
        assert_sane(terminal)
        first, last = terminal.pictures[1], terminal.pictures[-1]
        begun = [re.findall(r"│ [01] +│ \S+ +│ \d+ +│ +(\d+) │", one) for one in (first, last)]
        assert [len(counts) for counts in begun] == [2, 2], terminal.plain
        assert all(int(a) < int(b) for a, b in zip(*begun, strict=True)), begun
        pids = set(re.findall(r"│ [01] +│ \S+ +│ (\d+) ", last))
        assert len(pids) == 2, last
        assert where_numbered(f"{PSUM} in ") in last, last
        assert "all-reduce (sum) of 1 x f32" in last
        # It sleeps before every collective, so it is the last one to come to nearly all of them.
        assert re.search(r"│ process 1: \d+ ", last), last
        for one in terminal.pictures:  # a machine may stall for a second
            if "has not arrived yet" in one:
                assert re.search(r"waits for process \d │ +[\d.]+ s ", one), one
        assert "waits for process" in terminal.plain
        assert not re.search(r" 0\.00 .s ", last), last  # the time of moving is not measured


def test_a_directory_that_is_being_removed_is_a_run_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No picture is drawn of what is left of it."""
    record: Any = object()
    whole = run_records.Run(tuple(Process(k, record) for k in range(2)))
    half = run_records.Run((Process(0), Process(1, record)))
    found: list[Any] = [half, RecordError("it is gone")]

    def read(*_: Any) -> Any:
        if isinstance(one := found.pop(0), Exception):
            raise one
        return one

    monkeypatch.setattr(top.locate_run, "read", read)
    assert top._next(whole, tmp_path, None, None) is None
    found[:] = [half, half]  # a host of several is gone
    assert top._next(whole, tmp_path, None, None) is half


@pytest.mark.full
def test_ctrl_c_ends_top_and_not_the_job() -> None:
    with watched() as (run, terminal, top):
        os.write(terminal.own, b"\x03")
        assert top.wait(60) == 128 + signal.SIGINT, terminal.plain
        assert_sane(terminal)
        assert run.process.poll() is None
        end_of_job(run)


@pytest.mark.full
def test_top_says_how_a_job_failed() -> None:
    with watched("fail") as (run, terminal, top):
        (run.folder / "stop").touch()
        failed = re.compile(r"process 1 \(pid .*\) failed.* sys\.exit\(3\)")
        wait_until(lambda: bool(failed.search(terminal.plain)), "the failure", 60)
        (run.folder / "seen").touch()
        run.finish(60)
        assert top.wait(60) == 1, terminal.plain
        assert_sane(terminal)


@pytest.mark.full
def test_a_narrow_terminal_is_enough() -> None:
    with watched(width=72) as (run, terminal, top):
        end_of_job(run)
        assert top.wait(60) == 0, terminal.plain
        for picture in terminal.pictures:
            assert max(map(len, picture.splitlines())) <= 72, picture
        assert PSUM in terminal.pictures[-1]
