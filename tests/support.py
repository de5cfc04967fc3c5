"""Running ``lockstep run`` from a test: with a deadline, and a look at what it leaves behind."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import fork_server
import lockstep
from fork_server import MARK
from lockstep.system import process_tree
from processes import Ended

GONE_SECONDS = 10.0

MY_PROCESS = "import os, sys, time; i = int(os.environ['LOCKSTEP_PROCESS_ID'])\n"
"""The start of a program that needs its process id and these modules."""


class Result(Ended):
    """What a run said. ``by_process[i]`` holds the lines of process i on stdout, unprefixed."""

    @property
    def by_process(self) -> dict[int, list[str]]:
        return _unprefixed(self.stdout)

    @property
    def stderr_by_process(self) -> dict[int, list[str]]:
        return _unprefixed(self.stderr)

    @property
    def said_by_launcher(self) -> str:
        """The launcher's own words on stderr."""
        lines = [x for x in self.stderr.splitlines() if not re.match(r"\[ *\d+\] ?", x)]
        return "\n".join(lines)


def _unprefixed(text: str) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = {}
    for process, line in re.findall(r"^\[ *(\d+)\] ?(.*)$", text, re.MULTILINE):
        lines.setdefault(int(process), []).append(line)
    return lines


@functools.cache
def _sources() -> str:
    return "".join(path.read_text() for path in Path(lockstep.__file__).parent.rglob("*.py"))


def assert_unsaid(words: str, text: object) -> None:
    """That ``text`` does not have these words, which stand in a source: they could be there."""
    assert words in _sources(), f"no source has {words!r}, so no text could have it"
    assert words not in str(text), text


def with_variables(*variables: str) -> set[int]:
    """The processes that were started with all of these in their environment, as ``NAME=value``."""
    wanted, found = {each.encode() for each in variables}, set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if wanted <= set(environ.read().split(b"\0")):
                found.add(int(pid))
    return found


def marked(mark: str) -> set[int]:
    """The processes whose environment carries ``mark``."""
    return with_variables(f"{MARK}={mark}")


def wait_until(
    condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = GONE_SECONDS
) -> None:
    """Returns as soon as ``condition()`` holds; fails with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds:g} s: {said}")
        time.sleep(0.02)


class Run:
    """A running ``lockstep`` command, of which nothing outlives a ``with`` block."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, forked: bool = False
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        """Its TMPDIR; the launcher's private directories are made here."""
        environ = {**env, MARK: self.mark, "TMPDIR": str(folder)}
        if forked and fork_server.WANTED:
            self.process = fork_server.start(command, environ, folder / "stdout", folder / "stderr")
        else:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()
        self.process.communicate()

    def finish(self, timeout: float, stdin: bytes = b"", leaves: bool = False) -> Result:
        """Waits for the end; fails with the output when it does not come in ``timeout`` s.

        Nor may a process or a private directory be left behind, unless it ``leaves`` some: the next
        run removes the directory of a launcher, or an agent, that was killed with its guard.
        """
        try:
            out, err = self.process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            self.kill_all()
            out, err = self.process.communicate()
            raise AssertionError(f"no end within {timeout:g} s\n{_result(out, err, -1)}") from None
        if not leaves:
            self.assert_nothing_left()
        return _result(out, err, self.process.returncode)

    def wait_files(self, pattern: str, count: int) -> None:
        """Returns once the processes have made ``count`` files of this name in TMPDIR."""
        wait_until(lambda: len(list(self.folder.glob(pattern))) >= count, f"{count} {pattern}", 30)

    def leftovers(self) -> list[str]:
        """Processes and private directories of the run that are still there."""
        pids = marked(self.mark) - {self.process.pid}
        found = [f"process {pid}: {process_tree.command(pid)}" for pid in pids]
        return found + [str(path) for path in self.folder.glob("lockstep-run-*")]

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.leftovers(), lambda: f"{self.leftovers()} left behind")

    def kill_all(self) -> None:
        process_tree.kill(marked(self.mark))


def _result(out: bytes, err: bytes, status: int) -> Result:
    return Result(out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), status)


def _as_file(program: str | Path, folder: Path) -> Path:
    if isinstance(program, Path):
        return program
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return path


@contextlib.contextmanager
def start_lockstep(
    args: Sequence[str],
    program: str | Path,
    program_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    forked: bool = False,
) -> Iterator[Run]:
    """``lockstep run ARGS PROGRAM``, in the background; nothing of it outlives the block.

    ``program`` is a file, or source text. ``env`` is added to this process's environment.
    ``forked``: by the server of `fork_server`, for what does not test the start.
    """
    with tempfile.TemporaryDirectory(prefix="test-") as folder:
        file = _as_file(program, Path(folder))
        command = [sys.executable, "-m", "lockstep", "run", *args, str(file), *program_args]
        with Run(command, {**os.environ, **(env or {})}, Path(folder), forked) as run:
            yield run


def run_lockstep(
    args: Sequence[str],
    program: str | Path,
    *,
    n: int = 2,
    d: int | None = None,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    program_args: Sequence[str] = (),
    expect_status: int | None = 0,
    forked: bool = False,
) -> Result:
    """Runs ``program`` (a file, or source text) on ``n`` processes of ``d`` devices.

    Fails when it does not end in ``timeout`` seconds, ends with another status than
    ``expect_status`` (None: any), or leaves a process or a private directory behind.
    """
    sizes = ["-n", str(n)] + ([] if d is None else ["-d", str(d)])
    with start_lockstep([*sizes, *args], program, program_args, env, forked) as run:
        result = run.finish(timeout, stdin)
        if expect_status is not None:
            assert result.status == expect_status, result
        return result
