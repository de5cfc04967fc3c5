"""Processes that a test starts by itself, without the launcher: each with its own environment."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Ended:
    """What one process said, and its exit status."""

    stdout: str
    stderr: str
    status: int

    def __str__(self) -> str:
        return f"status {self.status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def clean_environ(**more: str) -> dict[str, str]:
    """This process's environment without what would place or configure a job, and ``more``.

    ``LOCKSTEP_ENGINE`` stays: it says which build is under test.
    """
    dropped = ("LOCKSTEP_", "JAX_", "MPITRAMPOLINE_", "SLURM_", "OMPI_", "PMI", "XLA_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "LOCKSTEP_ENGINE" or not name.startswith(dropped)
    }
    return {**kept, "JAX_PLATFORMS": "cpu", **more}


def write_key(path: Path, text: str = "k" * 64, mode: int = 0o600) -> Path:
    """A key file of a job, which nobody else may read."""
    path.write_text(text)
    path.chmod(mode)
    return path


def write_command(path: Path, script: str) -> str:
    """The path of a command that runs these lines of the shell."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def captured(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with its status and the text of its output; its stdin is empty."""
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def read_lines(process: subprocess.Popen[Any], count: int, end: str = "up") -> list[str]:
    """The next lines that a process prints, each of which has to end with these words."""
    assert process.stdout is not None
    lines = []
    for _ in range(count):
        line = process.stdout.readline()
        text = line if isinstance(line, str) else line.decode()
        said = process.stderr.read() if process.stderr is not None and not text else None
        assert text.endswith(f"{end}\n"), (text, said)
        lines.append(text.removesuffix("\n"))
    return lines


def python(
    program: str | Path, *args: str, env: Mapping[str, str] | None = None, timeout: float = 60
) -> Ended:
    """Runs a program (a file, or source text) in one process of its own."""
    [ended] = run_processes(program, [env or {}], args=[args], timeout=timeout)
    return ended


def run_processes(
    program: str | Path,
    environs: Sequence[Mapping[str, str]],
    args: Sequence[Sequence[str]] | None = None,
    timeout: float = 60,
    prefix: Sequence[str] = (),
) -> list[Ended]:
    """Runs a program once for each of ``environs`` at the same time, and waits for all.

    ``prefix`` is a command that starts Python.
    Fails with what they said when they have not all ended after ``timeout`` seconds; none of them
    outlives the call.
    """
    source = [str(program)] if isinstance(program, Path) else ["-c", textwrap.dedent(program)]
    args = args or [()] * len(environs)
    running = [
        subprocess.Popen(
            [*prefix, sys.executable, *source, *own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environ(**environ),
        )
        for environ, own in zip(environs, args, strict=True)
    ]
    deadline = time.monotonic() + timeout
    late = False
    ended = []
    for process in running:
        try:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            out, err = process.communicate()
        ended.append(Ended(out, err, process.returncode))
    if late:
        raise AssertionError(f"no end within {timeout:g} s:\n" + "\n".join(map(str, ended)))
    return ended


def assert_all_well(ended: Sequence[Ended]) -> None:
    for process, end in enumerate(ended):
        assert end.status == 0, f"process {process}: {end}"
