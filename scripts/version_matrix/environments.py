"""Interpreters on this machine, and a virtual environment for each Python and jax."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "versions"
INSTALL_SECONDS = 900
BUILD_SECONDS = 3600
"""The first wheel compiles the engine, on a busy machine too."""
KILLED_SECONDS = 5


class Failed(Exception):
    """A command that did not do what the matrix needs; the text is one line."""


_end = float("inf")


def limit(seconds: float) -> None:
    """From now on all commands together have so many seconds."""
    global _end
    _end = time.monotonic() + seconds


def run(
    command: Sequence[str | Path],
    seconds: float,
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a session of its own, which ends at the deadline; raises `Failed` then."""
    words = [str(word) for word in command]
    seconds = max(1.0, min(seconds, _end - time.monotonic()))
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(stdin, seconds)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child that left the session
            process.communicate(timeout=KILLED_SECONDS)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise Failed(f"no end within {seconds:g} s: {' '.join(words[:4])}") from None
    return subprocess.CompletedProcess(words, process.returncode, out, "")


def must(command: Sequence[str | Path], seconds: float = INSTALL_SECONDS, stdin: str = "") -> str:
    done = run(command, seconds, stdin=stdin)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise Failed(f"{' '.join(done.args[:4])}: exit status {done.returncode}: {last}")
    return done.stdout


def uv() -> str | None:
    """uv, of this environment (the extra `dev`) or on the path; None where it is absent."""
    here = Path(sys.executable).with_name("uv")
    return str(here) if here.exists() else shutil.which("uv")


def interpreter(python: str) -> Path | None:
    """Where this version of Python is: ours, on the path, of pyenv, of the system, or of uv."""
    for candidate in _candidates(python):
        with contextlib.suppress(OSError, Failed):
            program = "import sys; print(*sys.version_info[:2], sep='.'); print(sys.executable)"
            done = run([candidate.strip(), "-c", program], 30)
            # A shim of pyenv is there for a version that is not, and says so.
            version, _, path = done.stdout.strip().partition("\n")
            if done.returncode == 0 and version == python:
                return Path(path)
    return None


def _candidates(python: str) -> Iterable[str]:
    yield str(Path(sys.base_prefix, "bin", f"python{python}"))
    if found := shutil.which(f"python{python}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for home in sorted((pyenv / "versions").glob(f"{python}.*")):
        yield str(home / "bin" / "python")
    yield from (f"{folder}/python{python}" for folder in ("/usr/bin", "/usr/local/bin"))
    if tool := uv():
        with contextlib.suppress(Failed):
            yield must([tool, "python", "find", "--no-python-downloads", "--system", python], 30)


def newest_jax(python: Path, known: str) -> str:
    """The newest jax in the package index for this Python; ``known`` where it does not answer."""
    try:
        if tool := uv():
            resolve = [tool, "pip", "compile", "--no-deps", "--no-header", "--python", python, "-"]
            found = re.search(r"^jax==(\S+)", must(resolve, 60, stdin="jax\n"), re.M)
        else:
            answer = must([python, "-m", "pip", "index", "versions", "jax"], 60)
            found = re.search(r"^jax \((\S+)\)", answer, re.M)
    except Failed as error:
        print(f"The newest jax is not known ({error}); {known} is taken for it.", flush=True)
        return known
    return found[1] if found else known


def build_wheel() -> Path:
    """The wheel of this working tree, for every Python: what a user would install."""
    folder = FOLDER / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    make = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    # The build directory of scripts/install.py, where the engine is compiled already.
    build = f"--config-settings=build-dir=build/{Path(sys.prefix).name}"
    must(
        [*make, "--no-build-isolation", "--no-deps", build, "--wheel-dir", folder, ROOT],
        BUILD_SECONDS,
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def environment(name: str, interpreter: Path, wheel: str, *packages: str) -> Path:
    """The interpreter of an environment with these packages and the wheel, with its extras if any.

    The environment stays for the next run, which installs the wheel alone.
    """
    home = FOLDER / name
    own, ready = home / "bin" / "python", home / "ready"
    tool = uv()
    if not ready.exists():
        shutil.rmtree(home, ignore_errors=True)
        if tool:
            must([tool, "venv", "--quiet", "--python", interpreter, home])
        else:
            must([interpreter, "-m", "venv", home])
        _install(tool, own, *packages, wheel)
        ready.touch()
    else:
        again = ["--reinstall" if tool else "--force-reinstall", "--no-deps"]
        _install(tool, own, *again, wheel)
    return own


def _install(tool: str | None, python: Path, *words: str | Path) -> None:
    if tool:
        must([tool, "pip", "install", "--quiet", "--python", python, *words])
    else:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        must([*pip, *words])
