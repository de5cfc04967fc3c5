"""One implementation's job: started by the launcher, driven over a Unix socket.

The benchmark holds one connection to every process of the job, so an order reaches all of them
without using the collectives that are measured. Every wait here has a deadline.
"""

from __future__ import annotations

import dataclasses
import json
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lockstep._config import COLLECTIVES
from lockstep.bench import hosts_launcher

START_SECONDS = 120.0
MAX_REASON = 300
GRACE_SECONDS = 5.0
STOP_SECONDS = 15.0
_TELLING = (
    re.compile(r"\b[\w.]*(Error|Exception)\w*: "),
    re.compile(r"error:|terminate called|signal|Aborted|refused|failed"),
    re.compile(r""),
)


UNRECORDED = "unrecorded"
"""The engine without its recorder: what recording costs."""
PLAIN = "plain"
"""The engine with ``--no-encryption``, between hosts."""
STRICT = "strict"
"""The engine with ``--strict``: what comparing lines costs."""
XLA = "xla"
"""XLA's own exchange: all devices in one process that joins no job, so no library is called."""
IMPLEMENTATIONS = (*COLLECTIVES, PLAIN, XLA, UNRECORDED, STRICT)
_SETTINGS = {
    PLAIN: {"LOCKSTEP_ENCRYPTION": "0"},
    UNRECORDED: {"LOCKSTEP_RECORD": "0"},
    STRICT: {"LOCKSTEP_STRICT": "1"},
}
ENGINES = ("lockstep", *_SETTINGS)
"""The implementations whose collectives are those of Lockstep's engine."""


class JobFailed(Exception):
    """The job cannot go on; the text is one line that says why."""


class Startable(Protocol):
    """A job that `BenchJob` can start."""

    @property
    def implementation(self) -> str: ...

    @property
    def launched(self) -> int:
        """How many processes connect."""
        ...

    def command(self, path: Path) -> list[str]:
        """The launcher's command line; its processes connect to the socket at ``path``."""
        ...

    def environ(self, started: Mapping[str, str]) -> dict[str, str]:
        """The launcher's environment, made from the one that the benchmark was started with."""
        ...


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """A job to start: ``implementation`` on ``processes`` times ``devices`` devices."""

    implementation: str
    processes: int
    devices: int
    options: tuple[str, ...] = ()
    """Further options of ``lockstep run``."""
    x64: bool = False
    hosts: tuple[str, ...] = ()
    """The options of ``lockstep run`` that name hosts; none: this machine."""

    @property
    def is_one_process(self) -> bool:
        return self.implementation == XLA

    @property
    def launched(self) -> int:
        """How many processes there are."""
        return 1 if self.is_one_process else self.processes

    @property
    def collectives(self) -> str:
        if self.is_one_process:
            return "gloo"  # not used without a job; the engine is not loaded
        return "lockstep" if self.implementation in ENGINES else self.implementation

    def command(self, path: Path) -> list[str]:
        """The launcher's command line; its processes connect to the socket at ``path``."""
        words = [
            *("--collectives", self.collectives),
            *("-n", str(self.launched)),
            *("-d", str(self.devices * self.processes // self.launched), *self.options),
        ]
        if self.hosts:
            return hosts_launcher.command(path, [*self.hosts, *words])
        return [
            *(sys.executable, "-m", "lockstep", "run", "--this-host", *words),
            *(*hosts_launcher.WORKER, str(path)),
            *(["alone"] if self.is_one_process else []),
        ]

    def environ(self, started: Mapping[str, str]) -> dict[str, str]:
        """The launcher's environment, made from the one that the benchmark was started with."""
        x64 = {"JAX_ENABLE_X64": "1"} if self.x64 else {}
        return {**started, **x64, **_SETTINGS.get(self.implementation, {})}


def why(log: str) -> str:
    """The most telling line of a failed job's output: the first that names an exception, else the
    first that speaks of an error, else the first of all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = (line for pattern in _TELLING for line in lines if pattern.search(line))
    line = next(telling, "it printed nothing")
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


class _Line:
    """One process's connection: bytes in, whole lines out."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def feed(self) -> dict[str, Any] | None:
        """Reads once; an answer when a whole line is there. Raises `EOFError` at the end."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._buffer += data
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return json.loads(line)


class BenchJob:
    """A running job. Use it as a context manager, or `close` it: it leaves no process behind."""

    def __init__(self, spec: Startable, folder: Path, environ: Mapping[str, str]) -> None:
        """Starts the job and waits until every process has connected.

        Raises `JobFailed` when the launcher ends, or after `START_SECONDS`.
        """
        self.spec = spec
        self._log_path = folder / f"{spec.implementation}.log"
        path = folder / f"{spec.implementation}.sock"
        path.unlink(missing_ok=True)
        self._lines: list[_Line] = []
        self.hello: list[dict[str, Any]] = []
        with socket.socket(socket.AF_UNIX) as listener, self._log_path.open("wb") as log:
            listener.bind(str(path))
            listener.listen(spec.launched)
            listener.settimeout(0.1)
            # A session of its own: Ctrl-C reaches the benchmark only, which then stops its jobs.
            self._process = subprocess.Popen(
                spec.command(path),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=spec.environ(environ),
            )
            try:
                self._gather(listener)
            except BaseException:
                self.close()
                raise

    def _gather(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(self._lines) < self.spec.launched:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise self._failure(f"ended before it started: {self._said()}") from None
                if time.monotonic() > deadline:
                    raise self._failure(
                        f"did not start within {START_SECONDS:.0f} s: {self._said()}"
                    ) from None
                continue
            self._lines.append(_Line(connection))
        self.hello = self._answers(deadline)

    def request(self, order: str, timeout: float, **values: Any) -> list[dict[str, Any]]:
        """Gives every process an order; returns their answers, in no particular order.

        Raises `JobFailed` when a process answers with an error, ends, or ``timeout`` seconds pass.
        """
        data = (json.dumps({"do": order, **values}) + "\n").encode()
        deadline = time.monotonic() + timeout
        try:
            for line in self._lines:
                line.socket.sendall(data)
        except OSError:
            raise self._failure(self._last_words()) from None
        return self._answers(deadline)

    def _answers(self, deadline: float) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        with selectors.DefaultSelector() as selector:
            for line in self._lines:
                selector.register(line.socket, selectors.EVENT_READ, line)
            while len(answers) < len(self._lines):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._failure(
                        f"no answer in time from {len(self._lines) - len(answers)} of "
                        f"{len(self._lines)} processes"
                    )
                for key, _ in selector.select(min(left, 1.0)):
                    try:
                        answer = key.data.feed()
                    except (EOFError, OSError):
                        raise self._failure(self._last_words()) from None
                    if answer is not None and "error" in answer:
                        raise self._failure(why(answer["error"]))
                    if answer is not None:
                        answers.append(answer)
        return answers

    def _failure(self, reason: str) -> JobFailed:
        # What is left may wait for those that are gone: no use in waiting for it.
        self.close(grace=0.0)
        return JobFailed(reason)

    def _last_words(self) -> str:
        # The launcher prints which process failed first after it has stopped the others.
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return f"a process left; {self._said()}"
        return self._said()

    def _said(self) -> str:
        return why(self._log_path.read_text("utf-8", "replace"))

    def close(self, grace: float = GRACE_SECONDS) -> None:
        """Ends the job: by closed sockets within ``grace`` seconds, else by the launcher, which is
        sent SIGTERM, and SIGKILL when that does not help either."""
        for line in self._lines:
            line.socket.close()
        self._lines = []
        for stop, seconds in ((None, grace), (signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 1.0)):
            if stop is not None:
                self._process.send_signal(stop)
            try:
                self._process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                continue

    def __enter__(self) -> BenchJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
