"""Builds the engine's own tests, ``lockstep_tests``, and runs them, plain and under sanitizers.

Builds stay in build/native-tests, so a second run compiles only what changed. Needs CMake, Ninja
and a C++ compiler, as every build from source does.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD_SECONDS = 900
RUN_SECONDS = 1200
# Beside this Python stand the CMake and Ninja that `make` has installed for it.
PATH = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])


def call(command: list[str], seconds: float) -> str:
    """What ``command`` prints; fails with it unless it exits with 0 within ``seconds``."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PATH": PATH},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}"
    return done.stdout


def build(sanitizer: str) -> str:
    """The path of the built program. ``sanitizer``: thread, address, or empty for none."""
    cmake = shutil.which("cmake", path=PATH)
    assert cmake, "no cmake: `make test` installs one into .venv"
    directory = ROOT / "build" / "native-tests" / (sanitizer or "plain")
    options = ["-DLOCKSTEP_BUILD_TESTS=ON", f"-DLOCKSTEP_SANITIZE={sanitizer}"]
    call([cmake, "-S", str(ROOT / "native"), "-B", str(directory), "-G", "Ninja", *options], 120)
    call([cmake, "--build", str(directory), "--target", "lockstep_tests"], BUILD_SECONDS)
    return next(str(path) for path in directory.rglob("lockstep_tests") if path.is_file())


@pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)
@pytest.mark.parametrize(
    "sanitizer",
    [
        pytest.param("", id="plain"),
        pytest.param("thread", marks=pytest.mark.slow),
        pytest.param("address", marks=pytest.mark.slow),
    ],
)
def test_engine(sanitizer: str) -> None:
    output = call([build(sanitizer)], RUN_SECONDS)
    assert "0 failed" in output.splitlines()[-1], output[-8000:]
