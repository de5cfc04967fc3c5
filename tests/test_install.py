"""What `make demo` and `make test` show of the installation: steps, progress, failures."""

from __future__ import annotations

import os
import pty
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import captured, write_command
from support import wait_until

ROOT = Path(__file__).parents[1]
INSTALL = ROOT / "scripts" / "install.py"
DEADLINE_SECONDS = 60
LONG = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i + 1)); done"


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a tree whose .venv has Python 3.12, with a pip that runs the given shell script."""

    def make(pip: str) -> Path:
        for name in ("Makefile", "scripts", "src", "native", "pyproject.toml", "README.md"):
            (tmp_path / name).symlink_to(ROOT / name)
        (tmp_path / "LICENSE").symlink_to(ROOT / "LICENSE")
        programs = tmp_path / ".venv" / "bin"
        programs.mkdir(parents=True)
        (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.12.1\n")
        (programs / "pip").touch()
        write_command(
            programs / "python",
            f'case "$1 $2" in -c*print*) echo 3.12;; -c*) ;; -m*) {pip};;\n'
            f'*) exec {sys.executable} "$@";; esac',
        )
        return tmp_path

    return make


def make(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # What a surrounding make passes on would be taken for what the user has named.
    outside = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PYTHON", "VENV"}
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    return captured(
        ["make", *arguments], env=environment | {"CXX": "sh"}, cwd=tree, timeout=DEADLINE_SECONDS
    )


def test_each_step_is_one_line_without_a_terminal(tree: Callable[[str], Path]) -> None:
    done = make(tree("echo Collecting jax"), ".venv/.installed-demo")
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "Installing lockstep into .venv."
    titles = ["build tools", "dependencies", "the engine"]
    assert len(lines) == len(titles)
    for number, (line, title) in enumerate(zip(lines, titles, strict=True), start=1):
        assert line.startswith(f"[{number}/3] {title} ")
        assert line.endswith(" s")


def test_a_failed_step_shows_its_whole_output_and_fails_make(tree: Callable[[str], Path]) -> None:
    here = tree(f'case "$*" in *" .") {LONG}; exit 3;; esac')
    done = make(here, ".venv/.installed-demo")
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if line.startswith("line ")] == [
        f"line {number}" for number in range(300)
    ]
    assert "The step 'the engine' failed with status 3." in done.stderr
    assert "[3/3] the engine" in done.stdout
    assert "failed after" in done.stdout
    assert not (here / ".venv" / ".installed-demo").exists()


def test_the_engine_is_compiled_while_the_dependencies_load(
    tree: Callable[[str], Path], tmp_path: Path
) -> None:
    """The steps are shown one after the other; where the first fails, the other one ends too."""
    waits = f"for i in $(seq 600); do [ -s {tmp_path}/compiler ] && break; sleep 0.05; done"
    compiles = f"echo $$ > {tmp_path}/compiler; exec sleep 60"
    here = tree(f'case "$*" in *" .") {compiles};; *numpy*) {waits}; exit 4;; esac')
    done = make(here, ".venv/.installed-demo")
    assert done.returncode != 0
    assert "The step 'dependencies' failed with status 4." in done.stderr
    assert "[2/3] dependencies" in done.stdout.splitlines()[-1]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "compiler").read_text()), 0)


def test_dependencies_are_installed_once_for_what_they_are(
    tree: Callable[[str], Path], tmp_path: Path
) -> None:
    here = tree("echo Collecting jax")
    held = tmp_path / "constraints.txt"

    def titles(extras: str, *more: str) -> list[str]:
        held.write_text("\n".join(more))
        command = [sys.executable, INSTALL, "--venv", here / ".venv", "--extras", extras]
        environment = os.environ | {"PIP_CONSTRAINT": str(held)}
        done = captured(command, env=environment, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr
        return [line.split("]")[1].split("  ")[0].strip() for line in done.stdout.splitlines()[1:]]

    every = ["build tools", "dependencies", "the engine"]
    assert titles("dev,bench") == every
    assert titles("dev,bench") == titles("bench") == ["the engine"]
    assert titles("dev,bench,docs") == every
    assert titles("dev,bench,docs", "jax==0.8.0") == every
    assert titles("dev,bench,docs", "jax==0.8.0") == ["the engine"]
    assert titles("dev,bench,docs", "jax==0.9.0") == every


def until_released(words: str) -> str:
    """A pip that writes the words, and ends when the file `release` is there."""
    return f"echo {words}; until [ -e {{release}} ]; do sleep 0.05; done"


def read_until(descriptor: int, words: bytes) -> bytes:
    text, deadline = b"", time.monotonic() + DEADLINE_SECONDS
    os.set_blocking(descriptor, False)
    while words not in text:
        assert time.monotonic() < deadline, text
        try:
            text += os.read(descriptor, 4096)
        except BlockingIOError:
            time.sleep(0.02)
    return text


WHEEL = "'Downloading jaxlib-0.10.2-cp311-manylinux.whl (81.0 MB)'"


def test_a_long_step_has_a_heartbeat_that_says_what_it_does(
    tree: Callable[[str], Path], tmp_path: Path
) -> None:
    release = tmp_path / "release"
    here = tree(until_released(WHEEL).format(release=release))
    command = [sys.executable, INSTALL, "--venv", here / ".venv", "--heartbeat", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as installer:
        try:
            assert installer.stdout is not None
            text = read_until(installer.stdout.fileno(), b"downloading jaxlib (81.0 MB) ...\n")
            assert b"\r" not in text
            release.touch()
            assert installer.wait(DEADLINE_SECONDS) == 0
        finally:
            installer.terminate()


def test_a_terminal_gets_a_line_that_is_rewritten(
    tree: Callable[[str], Path], tmp_path: Path
) -> None:
    release = tmp_path / "release"
    here = tree(until_released(WHEEL).format(release=release))
    terminal, end = pty.openpty()
    command = [sys.executable, INSTALL, "--venv", here / ".venv"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=end, env=environment) as installer:
        try:
            text = read_until(terminal, b"downloading jaxlib (81.0 MB) ")
            assert text.count(b"\n") == 1  # the headline's
            release.touch()
            assert b"\r\x1b[K[1/3] build tools" in text + read_until(terminal, b"[3/3]")
            assert installer.wait(DEADLINE_SECONDS) == 0
        finally:
            installer.terminate()
            os.close(end)
            os.close(terminal)


def test_sigterm_ends_what_the_step_has_started(tree: Callable[[str], Path]) -> None:
    here = tree("sleep 300 & echo Collecting pid$!; wait")
    command = [sys.executable, INSTALL, "--venv", here / ".venv", "--heartbeat", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as installer:
        try:
            assert installer.stdout is not None
            words = b"looking for pid"
            text = read_until(installer.stdout.fileno(), words)
            text += read_until(installer.stdout.fileno(), b" ...")
            sleeper = int(text.partition(words)[2].split()[0])
            installer.send_signal(signal.SIGTERM)
            assert installer.wait(DEADLINE_SECONDS) == 130
        finally:
            installer.kill()
    wait_until(lambda: not runs(sleeper), "what the step started still runs", DEADLINE_SECONDS)


def runs(pid: int) -> bool:
    """Whether it does; a zombie that was not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[12/41] Building CXX object job.cc.o", "compiling the engine, 12 of 41"),
        ("  Downloading jax-0.8.0-py3-none-any.whl (2 MB)", "downloading jax (2 MB)"),
        ("Downloading https://index/p/jax-0.8.0-py3-none-any.whl (2 MB)", "downloading jax (2 MB)"),
        ("  Using cached numpy-2.0-cp311.whl (18 MB)", "in the cache: numpy (18 MB)"),
        ("Collecting scikit-learn>=1.4 (from -r x)", "looking for scikit-learn"),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("*** Configuring CMake...", "configuring cmake"),
        ("  warning: unused variable", None),
    ],
)
def test_what_a_line_says_is_happening(line: str, words: str | None) -> None:
    assert runpy.run_path(str(INSTALL))["activity"](line) == words


def test_bytes_are_shown_where_pip_reports_them() -> None:
    output = runpy.run_path(str(INSTALL))["Output"]()
    output.read(iter(["Downloading jaxlib-1-py3.whl (81 MB)\n", "Progress 34000000 of 81000000\n"]))
    assert output.activity == "downloading jaxlib (34 of 81 MB)"
    assert output.lines == ["Downloading jaxlib-1-py3.whl (81 MB)\n"]


def test_environments_do_not_share_a_build_directory() -> None:
    steps = runpy.run_path(str(INSTALL))["steps"]
    engines = [" ".join(steps(Path(name), [])[-1].command) for name in (".venv", ".venv-3.13")]
    assert ["build-dir=build/.venv " in engine for engine in engines] == [True, False]
    assert ["build-dir=build/.venv-3.13 " in engine for engine in engines] == [False, True]


def python(version: str, directory: Path) -> str:
    return write_command(directory / f"python{version}", f"echo {version}")


def test_another_python_gets_an_environment_of_its_own(
    tree: Callable[[str], Path], tmp_path: Path
) -> None:
    here = tree("false")
    other = make(here, "-n", "demo", f"PYTHON={python('3.13', tmp_path)}")
    assert "scripts/install.py --venv '.venv-3.13'" in other.stdout
    assert "using .venv-3.13" in other.stdout
    same = make(here, "-n", "demo", f"PYTHON={python('3.12', tmp_path)}")
    assert "scripts/install.py --venv '.venv' " in same.stdout


def test_an_environment_that_is_named_keeps_its_python(
    tree: Callable[[str], Path], tmp_path: Path
) -> None:
    done = make(tree("false"), "-n", "demo", f"PYTHON={python('3.13', tmp_path)}", "VENV=.venv")
    assert done.returncode != 0
    assert ".venv has another Python than" in done.stderr
    assert "give another VENV" in done.stderr
