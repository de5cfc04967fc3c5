"""What a job of many processes shows when it fails: one screen, and its logs keep the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.processes.alike_lines import FEW, SHOWN, AlikeLines, StreamLines
from support import run_lockstep

STACK = b'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    x = f(y)\n'
WHOLE = b"lockstep: process %d (pid 7) was killed (whole text: see the launcher's report)\n"
SCREEN = 50


def written(texts: dict[int, bytes]) -> tuple[bytes, str]:
    """What is shown of what each process writes, and the summary."""
    job = AlikeLines()
    shown = b""
    for process, text in texts.items():
        stream = StreamLines(job, process)
        shown += stream.feed(text) + stream.end()
    return shown, job.summary()


def test_lines_of_a_kind_are_counted_once_enough_were_shown() -> None:
    shown, summary = written(dict.fromkeys(range(1024), b"stopped at train.py:7\n"))
    assert shown == b"stopped at train.py:7\n" * SHOWN
    assert summary == f"not shown, for others have said the same: {1024 - SHOWN} x stopped ..."


def test_processes_that_were_stopped_outside_of_a_program_are_counted_too() -> None:
    assert written(dict.fromkeys(range(64), b"stopped\n"))[0] == b"stopped\n" * SHOWN


def test_a_process_that_was_stopped_elsewhere_is_shown() -> None:
    other = {700: b"stopped at data.py:3\n"}
    shown, _ = written(dict.fromkeys(range(700), b"stopped at train.py:7\n") | other)
    assert shown.endswith(b"stopped at data.py:3\n")


def test_the_processes_of_many_hosts_show_one_stack() -> None:
    shown, summary = written({p: STACK + WHOLE % p for p in range(1024)})
    assert shown.count(STACK) == 1
    assert shown.count(b"whole text") == SHOWN
    assert f"{1024 - SHOWN} x ... (whole text" in summary


def test_an_error_of_the_program_is_shown_once_with_its_stack() -> None:
    error = STACK + b"ValueError: no data\n"
    shown, summary = written(dict.fromkeys(range(64), error))
    assert shown.startswith(error)
    again = b"ValueError: no data (traceback as on process 0)\n"
    assert shown == error + again * SHOWN
    assert f"{63 - SHOWN} x ... (traceback as on process ...)" in summary


def test_another_stack_is_shown_whole() -> None:
    other = STACK.replace(b"line 7", b"line 9") + b"ValueError: no data\n"
    shown, _ = written({0: STACK + b"ValueError: no data\n", 1: other})
    assert other in shown


def test_a_process_that_writes_its_own_stack_twice_shows_it_twice() -> None:
    error = STACK + b"ValueError: again\n"
    assert written({0: error * 3}) == (error * 3, "")


PIECES = st.sampled_from(
    [b"loss 3\n", b"\n", b"  indented\n", STACK, b"KeyError: 1\n", b"no end", b"\xff\n", b"a\rb\n"]
)


@given(st.lists(PIECES), st.integers(1, 9))
def test_what_one_process_writes_comes_out_unchanged(pieces: list[bytes], size: int) -> None:
    lines = b"".join(pieces).splitlines(keepends=True)
    stream = StreamLines(AlikeLines(), 0)
    fed = [stream.feed(b"".join(lines[i : i + size])) for i in range(0, len(lines), size)]
    assert b"".join(fed) + stream.end() == b"".join(lines)


@pytest.mark.full
def test_a_failure_of_many_processes_is_one_screen(tmp_path: Path) -> None:
    program = """
        import os, signal, time
        print("up", flush=True)
        if os.environ["LOCKSTEP_PROCESS_ID"] == "7":
            time.sleep(20)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(300)
    """
    count = FEW + 8
    log_dir = ["--log-dir", str(tmp_path)]
    result = run_lockstep(log_dir, program, n=count, timeout=120, expect_status=137)
    lines = result.stderr.splitlines()
    assert len(lines) < SCREEN, result.stderr
    assert "process 7 of 40 failed first: killed by SIGKILL" in lines[-1]
    assert f"{count - 1 - SHOWN} x stopped ..." in result.stderr
    logs = [file.read_text() for file in tmp_path.rglob("stderr.log")]
    assert sum("stopped at" in text for text in logs) == count - 1
