"""What ``lockstep run`` shows of the processes' output, and what its logs keep."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from processes import captured
from support import MY_PROCESS, run_lockstep, start_lockstep


def test_prefixes_are_coloured_on_a_terminal_only(tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text("print('hello')")
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", str(program)]
    environ = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environ) as process:
        os.close(end)
        shown = b""
        while b"[1]" not in shown or b"[0]" not in shown:
            shown += os.read(terminal, 4096)
        assert process.wait(30) == 0
    os.close(terminal)
    assert b"\x1b[36m[0]\x1b[0m hello" in shown
    assert b"\x1b" not in run_lockstep([], program).stdout.encode()


def test_an_unfinished_line_is_shown_at_once_and_ended_at_the_end() -> None:
    program = """
        import sys
        sys.stdout.write("name? "); sys.stdout.flush()
        print("hello", input())
    """
    with start_lockstep(["-n", "1"], program) as run:
        assert run.process.stdout is not None
        assert run.process.stdout.read(10) == b"[0] name? "
        result = run.finish(30, stdin=b"Ada\n")
    assert result.stdout == "hello Ada\n"
    assert run_lockstep([], "print('x', end='')", n=1).stdout == "[0] x\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "[1] whole\n[0] loss 0.5\n"), (["--no-prefix"], "whole\nloss 0.5\n")],
)
def test_a_line_that_is_printed_in_parts_stays_whole(
    tmp_path: Path, options: list[str], said: str
) -> None:
    """As with PYTHONUNBUFFERED=1, where a value may come long after its name."""
    (tmp_path / "program.py").write_text(
        """if True:
        import os, pathlib, time
        if os.environ["LOCKSTEP_PROCESS_ID"] == "0":
            print("loss", end=" ", flush=True)
            while not pathlib.Path("other").exists():
                time.sleep(0.01)
            print(0.5)
        else:
            time.sleep(0.5)
            print("whole", flush=True)
            time.sleep(0.2)
            pathlib.Path("other").touch()
        """
    )
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", *options, "program.py"]
    done = captured(command, cwd=tmp_path)
    assert done.stdout == said, done


def test_a_huge_line_and_bytes_that_are_no_text_arrive() -> None:
    program = (
        MY_PROCESS
        + """
if i == 0:
    print("x" * 3_000_000)
else:
    sys.stdout.buffer.write(bytes(range(256)) * 100)
"""
    )
    with start_lockstep(["-n", "2", "--no-prefix"], program, forked=True) as run:
        out, _ = run.process.communicate(timeout=60)
    assert run.process.returncode == 0
    assert out.count(b"x") == 3_000_000 + 100
    assert out.count(b"\xff") == 100


def test_logs_hold_the_whole_output_and_the_error(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    program = (
        MY_PROCESS
        + f"""
import pathlib, time
print('out', i)
print('err', i, file=sys.stderr)
if i:
    # The first failure stops process 0: not before all that it prints is there.
    logs = pathlib.Path({str(logs)!r})
    while not any(x.read_text() for x in logs.glob("*/attempt_0/process_0/stderr.log")):
        time.sleep(0.01)
    raise ValueError('no')
"""
    )
    result = run_lockstep(["--log-dir", str(logs)], program, expect_status=1, forked=True)
    assert result.by_process == {0: ["out 0"], 1: ["out 1"]}
    [logs] = logs.iterdir()
    for i in range(2):
        assert result.stderr_by_process[i][0] == f"err {i}"
        folder = logs / "attempt_0" / f"process_{i}"
        assert (folder / "stdout.log").read_text() == f"out {i}\n"
        assert (folder / "stderr.log").read_text().startswith(f"err {i}\n")
    assert '"summary": "ValueError: no"' in (logs / "attempt_0/process_1/error.json").read_text()
    assert not (logs / "attempt_0/process_0/error.json").exists()
    assert f"complete logs: {logs}" in result.said_by_launcher
