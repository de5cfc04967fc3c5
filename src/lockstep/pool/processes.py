"""The processes of a pool from their start to their end: one run of the launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lockstep import _run_files
from lockstep._errors import LaunchError, SpawnError
from lockstep.hosts import host_query
from lockstep.pool import launcher, messages
from lockstep.pool.output import Output
from lockstep.processes import run_dir
from lockstep.system import stack_dump, unix_socket
from lockstep.system.channel import TRUSTED, Channel, Message

STOP_SECONDS = 10.0
"""Seconds that the launcher may take to end all processes, before it is killed itself."""
STACK_SECONDS = 3.0
"""Seconds for the stacks of processes on other hosts to come."""
RECORD_SECONDS = 3.0
"""Seconds for the records of other hosts to come."""
_ATTEMPT = 0


@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """What the processes of a pool are started with."""

    processes: int
    devices: int | None
    platform: str | None
    collectives: str
    environ: Mapping[str, str]
    """Variables that are set in the processes."""
    words: Sequence[str] = ()
    """Further options of ``lockstep run``."""
    hosts: Sequence[str] = ()
    """The host of each process; empty: this machine."""
    joins: bool = True
    """Whether the processes join the job; else JAX has no other process in each of them."""
    shown: bool = True
    """Whether their output is shown."""

    @property
    def labels(self) -> Sequence[str]:
        """The host of each process; "": this machine."""
        return self.hosts or [""] * self.processes

    def options(self) -> list[str]:
        """The options of ``lockstep run`` that start such processes."""
        words = ["-n", str(self.processes), "--collectives", self.collectives, *self.words]
        for name in ("devices", "platform"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name}", str(value)]
        # Settings of Lockstep are among those of the job.
        names = [n for n in self.environ if not n.startswith("LOCKSTEP_")] if self.hosts else []
        return words + [word for name in names for word in ("--export", name)]


class Processes:
    """The launcher, and a connection to each process. One thread at a time uses it."""

    def __init__(self, layout: PoolSpec) -> None:
        """Starts them and does not wait. Raises `LaunchError`."""
        self.layout = layout
        self._owner = os.getpid()
        self.output = Output(layout.labels)
        self.output.is_shown = layout.shown
        self.messages: list[tuple[int, Message]] = []
        """What has come: (rank, message)."""
        self.pids: dict[int, int] = {}
        self.lost: dict[int, float] = {}
        """Processes whose connection has ended, and when."""
        self.unread: set[int] = set()
        """Those of them that did not read what was sent to them: they may live."""
        self._ended: set[str] = set()
        self._stacks: dict[int, str] = {}
        self._leads: dict[int, float] = {}
        """How far the clock of this process is ahead of that of each, at most, in seconds."""
        self._channels: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()
        self.run_dir, self._lock = run_dir.make_locked()
        try:
            self._listener = self._listen()
            self._launcher = self._launch()
        except BaseException:
            shutil.rmtree(self.run_dir, ignore_errors=True)
            os.close(self._lock)
            raise
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for name in ("stdout", "stderr"):
            self._watch_output(name, getattr(self._launcher, name))

    def _listen(self) -> socket.socket:
        try:
            return unix_socket.listen(self.run_dir, messages.SOCKET)
        except OSError as error:
            raise LaunchError(
                f"no socket can be made in {self.run_dir}: {error.strerror}."
            ) from error

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = launcher.Settings(
            program=("-m", "lockstep.pool.worker"),
            words=self.layout.options(),
            run_dir=str(self.run_dir),
            on_hosts=bool(self.layout.hosts),
            sockets={messages.SOCKET: 0},
        )
        try:
            return subprocess.Popen(
                settings.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **self.layout.environ},
                start_new_session=True,  # the terminal's Ctrl-C is for the caller, which passes it
            )
        except OSError as error:
            raise LaunchError(f"the launcher of the pool cannot be started: {error}.") from error

    @property
    def has_records(self) -> bool:
        """Whether records show what each process does: those of the engine."""
        return self.layout.collectives == "lockstep"

    @property
    def is_over(self) -> bool:
        """Whether the launcher and all processes have ended."""
        return len(self._ended) == 2

    # Events

    def turn(self, seconds: float) -> None:
        """Waits for events, at most ``seconds``, and handles them."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            key.data()

    def _watch_output(self, name: str, pipe: IO[bytes]) -> None:
        def read() -> None:
            data = os.read(pipe.fileno(), 1 << 16)
            if data:
                self.output.feed(name, data)
                return
            self._selector.unregister(pipe)
            self._ended.add(name)

        self._selector.register(pipe, selectors.EVENT_READ, read)

    def _accept(self) -> None:
        connected, _ = self._listener.accept()
        self._watch_channel(Channel.of(connected, TRUSTED))

    def _watch_channel(self, other: Channel) -> None:
        rank: Any = None

        def read() -> None:
            nonlocal rank
            for message in other.receive():
                if message.kind == "hello":
                    rank = message.head["rank"]
                    self.pids[rank], self._channels[rank] = message.head["pid"], other
                    self._start(other)
                elif rank is None:
                    continue
                elif message.kind == "stacks":
                    self._stacks[rank] = message.head["text"]
                else:
                    self._compare_clocks(rank, message)
                    self.messages.append((rank, message))
            if other.ended:
                self._selector.unregister(other)
                other.close()
                if rank is not None:
                    self.lost[rank] = time.monotonic()
                    del self._channels[rank]

        self._selector.register(other, selectors.EVENT_READ, read)

    def _start(self, other: Channel) -> None:
        spec = self.layout
        path = messages.dumps(sys.path)
        other.send("start", path, elsewhere=bool(spec.hosts), joins=spec.joins)

    def _compare_clocks(self, rank: int, message: Message) -> None:
        if self.layout.hosts and "at" in message.head:
            lead = time.monotonic() - message.head["at"]
            self._leads[rank] = min(lead, self._leads.get(rank, lead))

    def here(self, rank: int, at: float) -> float:
        """A time of a process's clock as one of this process's, within some milliseconds."""
        return at + self._leads.get(rank, 0.0)

    def loaded(self, rank: int, message: Message) -> Any:
        """The body of a process's message. Raises `SpawnError` where it cannot be loaded here."""
        try:
            return pickle.loads(message.body)
        except Exception as error:
            raise SpawnError(
                f"what process {rank} has returned cannot be loaded here: {type(error).__name__}: "
                f"{error}. Return numbers, texts, arrays, or containers of these"
            ) from error

    # What the caller does

    def send(
        self, kind: str, body: bytes = b"", ranks: set[int] | None = None, **values: Any
    ) -> None:
        """Sends a message to ``ranks``, by default to all, and waits until it is written."""
        for rank, to in list(self._channels.items()):
            if ranks is None or rank in ranks:
                try:
                    to.send(kind, body, **values)
                    to.flush(messages.SEND_SECONDS)
                except OSError as error:  # its end is an event of its own in any case
                    if isinstance(error, TimeoutError):
                        self.unread.add(rank)
                    to.break_off()

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The Python stacks of processes."""
        found = dict.fromkeys(ranks, "it has not started yet")
        started = {rank for rank in ranks if rank in self.pids}
        if self.layout.hosts:
            return found | self._stacks_elsewhere(started)
        for rank in started:
            file = self._folder(rank) / stack_dump.FILE
            found[rank] = stack_dump.request(self.pids[rank], file)
        return found

    def _stacks_elsewhere(self, ranks: set[int]) -> dict[int, str]:
        self._stacks.clear()
        self.send("stacks", ranks=ranks)
        end = time.monotonic() + STACK_SECONDS
        while ranks - self._stacks.keys() and not self.is_over and time.monotonic() < end:
            self.turn(end - time.monotonic())
        none = (
            f"No Python stacks: it did not answer within {STACK_SECONDS:g} s. Is it stopped, or "
            "does native code in it hold the GIL?"
        )
        return dict.fromkeys(ranks, none) | self._stacks

    def refresh(self, latest: bool = False) -> bool:
        """Brings the records of other hosts up to date; whether they are now.

        ``latest``: only how far each device is.
        """
        if not self.layout.hosts:
            return True
        return host_query.refresh(self.run_dir, latest, RECORD_SECONDS)

    def exit_of(self, rank: int, seconds: float) -> _run_files.Exit | None:
        """How a lost process ended; None where that is not known after ``seconds``, and at once for
        a process that may live."""
        seconds = 0.0 if rank in self.unread else seconds
        deadline = time.monotonic() + seconds
        while True:
            found = _run_files.Exit.read(self._folder(rank), self.pids.get(rank))
            if found or self.is_over or time.monotonic() > deadline:
                return found
            self.turn(0.02)

    def _folder(self, rank: int) -> Path:
        return _run_files.process_dir(self.run_dir, _ATTEMPT, rank)

    def close(self, at_once: bool = False) -> None:
        """Ends the processes and releases everything; ``at_once``: without their exit handlers."""
        if os.getpid() != self._owner:
            return  # a forked child ends: the processes are not its own
        try:
            with contextlib.suppress(BaseException if at_once else Exception):
                self._end(at_once, time.monotonic() + STOP_SECONDS)
        finally:  # also after Ctrl-C
            self._release()

    def _end(self, at_once: bool, deadline: float) -> None:
        if at_once:
            self.output.is_shown = False  # of what ends by a signal: its last words are known
            # The second signal, which differs, makes the supervisor kill.
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._launcher.send_signal(number)
        for each in list(self._channels.values()):
            each.close_input()
        while not self.is_over and time.monotonic() < deadline:
            self.turn(deadline - time.monotonic())

    def _release(self) -> None:
        self.output.end()
        if not self.is_over:
            self._launcher.kill()  # the processes end with it: their parent-death signal
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(STOP_SECONDS)
        for key in list(self._selector.get_map().values()):
            with contextlib.suppress(OSError):
                if isinstance(key.fileobj, (Channel, socket.socket)):
                    key.fileobj.close()
        self._selector.close()
        for pipe in (self._launcher.stdout, self._launcher.stderr):
            if pipe:
                pipe.close()
        shutil.rmtree(self.run_dir, ignore_errors=True)
        os.close(self._lock)
