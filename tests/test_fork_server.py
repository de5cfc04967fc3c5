"""A fork of the server is as an interpreter of its own, and nothing outlives the one that asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

import fork_server
from fork_server import MARK, Forked
from lanes import sample
from support import marked, run_lockstep, wait_until

TIMEOUT = 30.0
IS_FORK = "sys.orig_argv[2].endswith('fork_server_main.py')"


def start(folder: Path, program: str, *args: str, **env: str) -> Forked:
    command = [sys.executable, "-c", textwrap.dedent(program), *args]
    output = folder / "stdout", folder / "stderr"
    for path in output:
        path.unlink(missing_ok=True)
    return fork_server.start(command, {**os.environ, MARK: uuid.uuid4().hex, **env}, *output)


def said(folder: Path, program: str, *args: str, **env: str) -> list[str]:
    forked = start(folder, program, *args, **env)
    out, err = forked.communicate(timeout=TIMEOUT)
    assert (forked.returncode, err) == (0, b"")
    return out.decode().splitlines()


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, ""),
    ],
)
def test_it_ends_as_python_does(tmp_path: Path, program: str, status: int, words: str) -> None:
    forked = start(tmp_path, program)
    out, err = forked.communicate(timeout=TIMEOUT)
    assert (forked.returncode, out) == (status, b"")
    assert err.decode().endswith(words)
    assert bool(err) == bool(words)


def test_streams_arguments_environment_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)  # the server has it from the test before
    program = f"""
        import atexit, os, sys
        atexit.register(print, "at the end")
        print({IS_FORK}, sys.argv, os.environ["OWN"], os.getcwd(), sys.path[:2])
        print(sorted(os.listdir("/proc/self/fd")))
        print("HOME" in os.environ, sys.stdin.read() == "", file=sys.stderr)
    """
    forked = start(tmp_path, program, "a", "b", OWN="value", PYTHONPATH="/own")
    out, err = forked.communicate(timeout=TIMEOUT)
    assert out.decode().splitlines() == [
        f"True ['-c', 'a', 'b'] value {tmp_path} ['', '/own']",
        "['0', '1', '2', '3']",  # the last is of the folder that is read
        "at the end",
    ]
    assert err == b"False True\n"


def test_the_next_one_sees_nothing_of_the_one_before(tmp_path: Path) -> None:
    program = """
        import os, sys, jax, numpy, lockstep
        print(jax.config.jax_enable_x64, jax.local_device_count(), sys.modules.get("left"))
        print(os.environ.get("LEFT"), os.environ.get("OWN"), lockstep._config.current().strict)
        print(numpy.random.random())
        os.environ["LEFT"] = "1"
        sys.modules["left"] = sys
        jax.config.update("jax_enable_x64", True)
    """
    *first, chance = said(tmp_path, program, JAX_NUM_CPU_DEVICES="3", OWN="1", LOCKSTEP_STRICT="1")
    assert first == ["False 3 None", "None 1 True"]
    *second, another = said(tmp_path, program, JAX_NUM_CPU_DEVICES="2")
    assert second == ["False 2 None", "None None False"]
    assert chance != another


@sample(
    "variable", ["JAX_ENABLE_X64=1", "LOCKSTEP_COLLECTIVES=gloo", "PYTHONHASHSEED=1", "LC_ALL=C"], 0
)
def test_what_is_read_at_the_start_is_read_at_a_start(tmp_path: Path, variable: str) -> None:
    name, value = variable.split("=")
    program = f"""
        import os, sys, lockstep, jax
        print({IS_FORK}, os.environ[{name!r}], jax.config.jax_enable_x64)
    """
    x64 = name == "JAX_ENABLE_X64"
    assert said(tmp_path, program, **{name: value}) == [f"False {value} {x64}"]
    assert said(tmp_path, program.replace(f"[{name!r}]", "['PATH'][:0]")) == ["True  False"]


def test_the_processes_of_a_job_are_forks_where_they_can_be() -> None:
    program = f"import sys; print({IS_FORK})"
    gloo, checked = ["--collectives", "gloo"], ["--check-replicas", "1"]
    for options, forks in (([], "True"), (gloo, "True"), (checked, "False")):
        result = run_lockstep(options, program, forked=True)
        assert result.by_process == {0: [forks], 1: [forks]}, result


def test_a_process_is_found_by_its_mark(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    forked = start(tmp_path, "import time; time.sleep(100)", **{MARK: mark})
    wait_until(lambda: marked(mark) == {forked.pid}, "the process is found")
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    forked.kill()
    assert forked.wait(TIMEOUT) == -signal.SIGKILL
    assert marked(mark) == set()


@pytest.mark.full
@sample("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"], 1)
def test_the_server_and_its_forks_end_with_the_one_that_asked(tmp_path: Path, end: str) -> None:
    program = f"""
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import fork_server
        output = Path(sys.argv[1], "stdout"), Path(sys.argv[1], "stderr")
        sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
        forked = fork_server.start(sleep, os.environ, *output)
        print(fork_server.server()[1].pid, forked.pid, flush=True)
        {end}
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    environ = {**os.environ, MARK: uuid.uuid4().hex}
    done = subprocess.run(command, env=environ, capture_output=True, timeout=60)
    assert done.returncode == (-signal.SIGKILL if end else 0), done
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"{pids} have ended")
