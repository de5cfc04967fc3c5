"""``lockstep run`` with small programs: what they get, what is shown, how failures are told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lanes import sample
from lockstep import cli
from lockstep._config import Config
from lockstep._errors import ConfigError
from lockstep.launch import run_command
from lockstep.launch.before_start import check_program, warn, warn_of_collectives
from lockstep.launch.options import run_parser
from lockstep.processes import child_main
from processes import captured, read_lines
from support import MY_PROCESS, assert_unsaid, run_lockstep, start_lockstep


def lockstep(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return captured(
        [sys.executable, "-m", "lockstep", *words],
        env={**os.environ, **({"TMPDIR": str(cwd)} if cwd else {})},
        cwd=cwd,
    )


def test_every_process_runs_the_program_with_its_arguments() -> None:
    program = MY_PROCESS + (
        "time.sleep(0.5 * i)\nprint(i, sys.argv[1:])\nif i: sys.exit([None, 0][i - 1])"
    )
    args = ["-n", "9", "--lr=0.1", "--"]
    result = run_lockstep([], program, n=3, program_args=args, forked=True)
    assert result.by_process == {i: [f"{i} ['-n', '9', '--lr=0.1', '--']"] for i in range(3)}
    assert result.said_by_launcher == ""


def test_stdin_goes_to_process_0_and_the_others_see_its_end() -> None:
    result = run_lockstep([], "import sys; print(repr(sys.stdin.read()))", stdin=b"to zero\n")
    assert result.by_process == {0: [r"'to zero\n'"], 1: ["''"]}


def test_a_launcher_without_stdin_gives_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(repr(sys.stdin.read()))")
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", str(tmp_path / "program.py")]
    done = captured(["sh", "-c", 'exec "$@" <&-', "sh", *command])
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0] ''", "[1] ''"]), done


def test_an_exception_is_the_headline_with_its_causes_and_without_our_frames() -> None:
    program = (
        MY_PROCESS
        + """
def step():
    try:
        {}["weights"]
    except KeyError as error:
        raise RuntimeError("no weights") from error

if i == 1:
    step()
time.sleep(60)
"""
    )
    result = run_lockstep([], program, expect_status=1, forked=True)
    said = result.said_by_launcher
    first = "lockstep: process 1 of 2 failed first: RuntimeError: no weights (exit code 1)"
    assert said.splitlines()[0] == f"{first}, program.py:7 in step (traceback above)"
    shown = "\n".join(result.stderr_by_process[1])
    assert "KeyError: 'weights'" in shown
    assert "The above exception was the direct cause" in shown
    assert "in step" in shown
    for text in (said, shown):
        assert Path(child_main.__file__).name not in text
        assert_unsaid("runpy", text)


def test_the_headline_is_the_cause_though_its_process_ends_last() -> None:
    program = (
        MY_PROCESS
        + """
import atexit, pathlib, signal
ready, raises = (pathlib.Path(os.environ["TMPDIR"], name) for name in ("ready", "raises"))
def wait_for(file):
    while not file.exists():
        time.sleep(0.01)
if i == 1:
    wait_for(ready)
    atexit.register(time.sleep, 1)
    raises.touch()
    raise ValueError("the cause")
signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would end this process before it raises
ready.touch()
wait_for(raises)
time.sleep(0.3)
raise ConnectionError("a consequence")
"""
    )
    said = run_lockstep([], program, expect_status=1, forked=True).said_by_launcher
    assert "process 1 of 2 failed first: ValueError: the cause" in said
    assert "later: ConnectionError: a consequence (exit code 1)" in said


@sample(
    ("ending", "status", "words"),
    [
        ("sys.exit(3)", 3, "failed first: sys.exit(3) (exit code 3)"),
        ("sys.exit('out of luck')", 1, "failed first: sys.exit('out of luck') (exit code 1)"),
        ("os._exit(7)", 7, "failed first: exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "failed first: killed by SIGKILL (signal 9)"),
        ("os.abort()", 134, "failed first: killed by SIGABRT (signal 6)"),
        ("1 +", 1, "SyntaxError: invalid syntax (exit code 1)"),
        ("raise KeyboardInterrupt", 130, "failed first: KeyboardInterrupt"),
    ],
    *(1, 3),
)
def test_the_status_is_that_of_the_first_failure(ending: str, status: int, words: str) -> None:
    program = MY_PROCESS + f"if i == 1:\n    print('last words', file=sys.stderr)\n    {ending}\n"
    result = run_lockstep([], program + "time.sleep(60)", expect_status=status, forked=True)
    assert words in result.said_by_launcher
    if "_exit(7)" in ending:
        assert "Its last lines on stderr:\n    last words" in result.said_by_launcher
    if "luck" in ending:
        assert "out of luck" in result.stderr_by_process[1]


def test_a_program_that_does_not_know_its_arguments_says_why_in_the_last_line() -> None:
    program = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
"""
    args = ["--lr", "3", "-d", "2"]
    result = run_lockstep([], program, program_args=args, expect_status=2, forked=True)
    first, *_, last = result.said_by_launcher.splitlines()
    why = 'after "program.py: error: unrecognized arguments: -d 2" on stderr'
    for line in (first, last):
        assert f"failed: sys.exit(2) (exit code 2), program.py:5, {why}" in line, result
    assert "-d 2 is given to the program, behind whose name it stands." in result.stderr
    assert "lockstep run ... -d 2 " in result.said_by_launcher, result
    result = run_lockstep([], program, program_args=["--lr", "x"], expect_status=2, forked=True)
    assert "argument --lr: invalid float value: 'x'" in result.said_by_launcher.splitlines()[-1]
    assert result.said_by_launcher.count("Traceback (most recent call last)") == 1, result
    assert_unsaid("behind whose name it stands", result.said_by_launcher)


def test_a_module_is_run_as_python_does(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text(
        "import sys; print(__name__, __spec__.name, __package__, sys.argv, sys.path[0])"
    )
    done = lockstep("run", "-n", "1", "-m", "pkg.tool", "-m", "x", cwd=tmp_path)
    assert done.stdout == (
        f"[0] __main__ pkg.tool pkg ['{package}/tool.py', '-m', 'x'] {tmp_path}\n"
    )
    done = lockstep("run", "-m", "pkg.missing", cwd=tmp_path)
    assert done.returncode == 1
    first = "lockstep: process 0 of 1 failed first: ImportError: No module named pkg.missing"
    assert first in done.stderr
    assert_unsaid("runpy", done.stderr)


def test_code_is_run_from_a_word_and_from_standard_input(tmp_path: Path) -> None:
    code = "import sys\nprint(__name__, sys.argv, repr(sys.path[0]), sys.stdin.read())"
    done = lockstep("run", "-np", "1", "-c", code, "-x", cwd=tmp_path)
    assert done.stdout == "[0] __main__ ['-c', '-x'] '' \n", done.stderr
    failing = "import sys\ndef f():\n    sys.stdin.read()\n    raise ValueError('no')\nf()\n"
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", "-", "y"]
    done = subprocess.run(command, input=failing, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    # The line of the code is shown, though no file has it.
    assert re.search(r'"<string>", line 4, in f\n.*raise ValueError\(\'no\'\)', done.stderr)


def test_code_that_is_too_long_for_a_command_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 100001 bytes, and at most 100000 are possible"):
        check_program(["-c", "#" * 100_001], "run")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "run",
            "no program given. Usage: lockstep run [options] (script.py | -m module | -c code | -)",
        ),
        ("run -n 2", "no program given"),
        ("run missing.py", "no such file: missing.py\n"),
        ("run -n 2 ./heer.py", "no such file: ./heer.py (did you mean ./here.py?)"),
        ("run -n 2 python here.py", "no such file: python. Leave it out: Lockstep starts"),
        ("run pkg.train", "no such file: pkg.train (did you mean -m pkg.train?)"),
        ("run -n 2 .", "not a file: .. To run a package: -m NAME"),
        ("run -m", "-m needs the name of a module"),
        ("run -c", "-c needs the code of the program"),
        ("worker -", "- is for lockstep run"),
        ("run -m no_such_module_", "no module named 'no_such_module_'"),
        ("run --log-dir file here.py", "--log-dir file: Not a directory"),
        ("run -d 2 --collectives mpi here.py", "--collectives mpi takes one"),
        (
            "run -n 10000000 here.py",
            re.compile(r"-n 10000000: \d+ MB of memory .* so there is room for \d+"),
        ),
        ("worker", "Usage: lockstep worker [options]"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    words: str,
    error: str | re.Pattern[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "here.py").write_text("print('started')")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(run_command, "run_guarded", None)
    assert cli.main(words.split()) == 2
    said = capsys.readouterr()
    assert re.search(error if isinstance(error, re.Pattern) else re.escape(error), said.err)
    assert said.out == ""
    assert not list(tmp_path.glob("lockstep-*"))


@pytest.mark.parametrize("most", [6, 8, 9])
def test_too_few_open_files_are_told_without_a_traceback(most: int, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("print('started')")
    command = [sys.executable, "-m", "lockstep", "run", "-n", "8", str(tmp_path / "here.py")]
    done = captured(["sh", "-c", f'ulimit -n {most}; exec "$@"', "sh", *command])
    assert done.returncode != 0
    assert_unsaid("Traceback", done.stderr)
    assert "Too many open files" in done.stderr
    assert "raise the limit (ulimit -n)" in done.stderr


def test_warnings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XLA_FLAGS", flag := "--xla_force_host_platform_device_count=8")
    warn(run_parser().parse_args(["-n", "1", "-d", "4"]), range(2))
    assert f"-d 4 overrides {flag} in XLA_FLAGS" in capsys.readouterr().err
    warn_of_collectives({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}, Config())
    assert "the job uses lockstep; to use gloo: --collectives gloo" in capsys.readouterr().err
    warn(run_parser().parse_args(["-n", "17"]), range(2))
    assert "warning: 17 processes on 2 cores" in capsys.readouterr().err
    warn(run_parser().parse_args(["-n", "16"]), range(2))
    assert capsys.readouterr().err == ""


def test_cores_are_shared_out() -> None:
    cores = sorted(os.sched_getaffinity(0))
    program = "import os; print(*sorted(os.sched_getaffinity(0)))"
    assert run_lockstep(["--bind", "none"], program, n=1, forked=True).by_process[0] == [
        " ".join(map(str, cores))
    ]
    if len(cores) > 1:
        bound = run_lockstep(["--bind", "cores"], program, forked=True).by_process
        held = [core for lines in bound.values() for core in lines[0].split()]
        assert sorted(map(int, held)) == cores


def test_two_runs_at_once_have_different_ports_and_directories() -> None:
    program = """
        import os, sys
        print(os.environ["LOCKSTEP_COORDINATOR"], os.environ["LOCKSTEP_RUN_DIR"], flush=True)
        sys.stdin.read()
    """
    with start_lockstep(["-n", "1"], program) as one, start_lockstep(["-n", "1"], program) as two:
        said = [read_lines(run.process, 1, "")[0].split() for run in (one, two)]
        assert said[0][1] != said[1][1]
        assert said[0][2] != said[1][2]
        assert one.finish(30).status == two.finish(30).status == 0


def test_version_and_help_do_not_import_jax() -> None:
    for words in (["--version"], ["--help"], ["run", "--help"], ["worker", "--help"]):
        done = captured([sys.executable, "-X", "importtime", "-m", "lockstep", *words])
        assert done.returncode == 0, done
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "lockstep.cli" in imported
        assert not imported & {"jax", "jaxlib", "numpy", "rich", "asyncio"}
