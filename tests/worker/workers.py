"""Processes that are started by ``lockstep worker``, and what a test reads of them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cluster_environs import torchrun
from lockstep.system import process_tree
from processes import captured, free_port, read_lines
from support import MARK, marked, wait_until
from worker.test_worker_command import CLEAN, WORKER, mpiexec

TIMEOUT = 120


class Workers:
    """Some of the processes of a job of two, as torchrun would start them."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        (folder / "program.py").write_text(program)
        self.mark = f"agent-{os.urandom(8).hex()}"
        self.port = str(free_port())
        self.started: list[subprocess.Popen[str]] = []

    @property
    def left(self) -> list[Path]:
        """Private directories of runs."""
        return list((self.folder / "tmp").glob("lockstep-run-*"))

    @property
    def environ(self) -> dict[str, str]:
        return {**CLEAN, MARK: self.mark, "TMPDIR": str(self.folder / "tmp")}

    def start(
        self, rank: int, *args: str, prefix: Sequence[str] = (), options: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, *WORKER, *options, str(self.folder / "program.py"), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environ, **torchrun(rank, 2, 2, self.port)},
        )
        self.started.append(process)
        return process

    def run_both(self, *args: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """What both have done under MPICH's mpiexec; they leave no directory."""
        worker = [*WORKER, *options, str(self.folder / "program.py"), *args]
        done = captured([mpiexec(), "-n", "2", *worker], timeout=TIMEOUT, env=self.environ)
        # mpiexec kills agents, and what they leave is removed by others a moment later.
        wait_until(lambda: not self.left, lambda: f"an end of {self.left}")
        return done

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        process_tree.kill(marked(self.mark))
        for process in self.started:
            process.communicate(timeout=TIMEOUT)


def workers_with(program: str) -> Callable[..., Iterator[Workers]]:
    """A fixture: processes that run this program."""

    @pytest.fixture
    def workers(tmp_path: Path) -> Iterator[Workers]:
        with Workers(tmp_path, program) as made:
            yield made

    return workers


def pids(process: subprocess.Popen[str]) -> tuple[int, int, int]:
    """Of the program, of its parent, and its process group."""
    _, pid, parent, group = read_lines(process, 1, "")[0].split()
    return int(pid), int(parent), int(group)


def rest(process: subprocess.Popen[str]) -> str:
    """What is still to be read of its lines."""
    assert process.stdout is not None
    with Deadline(process):
        said = process.stdout.read()
        process.wait()
    return said


class Deadline(threading.Timer):
    """Kills a process that does not end in time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(TIMEOUT, process.kill)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.cancel()
