"""The processes of a job on several hosts, which the agents of the hosts have started.

It does what `local_processes` does, by messages (`host_agent`). All times are those of this
machine's clock: each connection knows how far the clock of its host is ahead.

A host that is lost (`lockstep.hosts.connection`) ends the job like a process that has failed. Its
processes have ended by then, or end within the lease of their agent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import selectors
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import _run_files
from lockstep._run_files import ErrorRecord, Exit
from lockstep.hosts import host_query, host_records
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Placed
from lockstep.hosts.lease import PING_SECONDS
from lockstep.hosts.relay import KINDS, Connect, Relay
from lockstep.hosts.remote_process import RemoteProcess
from lockstep.hosts.returning_hosts import ReturningHosts
from lockstep.processes import console as consoles
from lockstep.processes.job_processes import Loop
from lockstep.processes.job_spec import LaunchSpec
from lockstep.system.channel import Message

SWEEP_SECONDS = 12.0
COLLECT_SECONDS = 20.0
_CHUNK = 1 << 16


class RemoteProcesses:
    """See `job_processes.Processes`."""

    def __init__(
        self,
        job: LaunchSpec,
        loop: Loop,
        fleet: Fleet,
        places: Sequence[tuple[Connection, Placed]],
        orders: Mapping[Connection, Mapping[str, Any]],
        connect: Connect,
        watch: ReturningHosts,
    ) -> None:
        """``orders`` are the ``start`` messages; ``connect`` serves the processes' streams."""
        self._watch = watch
        self._job = job
        self._loop = loop
        self._fleet = fleet
        self._places = places
        self._orders = orders
        self.members: list[RemoteProcess] = []
        self._swept: dict[Connection, int] = {}
        self._collected: dict[Connection, int] = {}
        """The last collection that each host has answered."""
        self._collections = 0
        self._stdin_open = False
        self.not_stored = ""
        self._query: host_query.QueryServer | None = None
        self._connect = connect
        self._relays: dict[Connection, Relay] = {}
        self._actions: dict[str, Callable[[Connection, Message], None]] = {
            "output": self._on_output,
            "error": self._on_error,
            "exit": self._on_exit,
            "not_started": self._on_not_started,
            "stdin_taken": lambda connection, message: self._read_stdin(True),
            "file": self._on_file,
            "collected": self._on_collected,
            "swept": self._on_swept,
            **dict.fromkeys(KINDS, self._on_stream),
        }

    def listen(self) -> None:
        for connection in self._fleet.connections:
            self._adopt(connection)
        self._watch.listen(self._loop, self._adopt)
        with contextlib.suppress(OSError):  # without it, `lockstep top` sees nothing
            self._query = host_query.QueryServer(self._job.run_dir, self._loop.selector, self)

    def _adopt(self, connection: Connection) -> None:
        connection.attach(self._loop.selector, self._on_message, self._on_loss)

    def close(self) -> None:
        self._read_stdin(False)
        self._watch.close()
        if self._query:
            self._query.close()
        for relay in self._relays.values():
            relay.close()
        for connection in self._fleet.connections:
            connection.detach()

    # Starting

    def start(self) -> None:
        console = self._loop.console
        labels = [c.label for c, placed in self._places for _ in placed.processes]
        out = consoles.prefixes(labels, console.stdout, self._job.prefixed)
        err = consoles.prefixes(labels, console.stderr, self._job.prefixed)
        for connection, placed in self._places:
            for process_id in placed.processes:
                prefixes = (out[process_id], err[process_id])
                try:
                    _run_files.make_folder(self._job.process_dir(process_id))
                    process = RemoteProcess(self._job, process_id, connection, console, prefixes)
                except OSError as error:
                    self._forget_all()
                    self._loop.could_not_start(process_id, f"its logs: {error}")
                    return
                self.members.append(process)
        for connection, _ in self._places:
            connection.send("start", attempt=self._job.config.attempt, **self._orders[connection])
            if connection.lost:
                self._on_loss(connection)
        self._read_stdin(True)

    def _forget_all(self) -> None:
        """No host has been asked to start anything, so that none reports an end."""
        for process in self.members:
            process.close_output()
        self.members.clear()

    # Messages

    def _on_message(self, connection: Connection, message: Message) -> None:
        if action := self._actions.get(message.kind):
            try:
                # A host that was slow may still answer what was asked in an earlier attempt.
                if int(message.head["attempt"]) == self._job.config.attempt:
                    action(connection, message)
            except (
                *(LookupError, TypeError, ValueError),
                *(ArithmeticError, AttributeError, zlib.error),
            ) as error:
                connection.lose(
                    f"its host was lost: the agent on {connection.host.name} has sent a message "
                    f"({message.kind}) that is not one: {error!r}"
                )

    def _process(self, connection: Connection, message: Message) -> RemoteProcess:
        number = int(message.head["process"])
        if not 0 <= number < len(self.members):
            raise ValueError(f"there is no process {number}")
        process = self.members[number]
        if process.connection is not connection:
            raise ValueError(f"process {process.process_id} runs on another host")
        return process

    def _on_output(self, connection: Connection, message: Message) -> None:
        process = self._process(connection, message)
        stream = process.stdout if message.head["stream"] == "stdout" else process.stderr
        if not stream.closed:
            stream.feed(message.body)

    def _on_error(self, connection: Connection, message: Message) -> None:
        process = self._process(connection, message)
        record = ErrorRecord.of_values(message.head["record"])
        at = self._here(connection, message, record.time)
        process.on_error(dataclasses.replace(record, time=at))
        self._loop.failed()

    def _on_exit(self, connection: Connection, message: Message) -> None:
        process = self._process(connection, message)
        at = self._here(connection, message, int(message.head["at"]) / 1e9)
        ending = Exit.of_values(message.head["exit"])
        # The wall clock of the host may be wrong by hours.
        here = time.time_ns() - int((time.monotonic() - at) * 1e9)
        ending = dataclasses.replace(ending, realtime_ns=here)
        process.on_exit(ending, bool(message.head["was_killed"]), at)
        self._write_exit(process)
        if ending.status != 0:
            self._loop.failed()

    def _write_exit(self, process: RemoteProcess) -> None:
        """Leaves it for readers of a run that goes on; the agent sends the same one."""
        with contextlib.suppress(OSError):
            if process.exit:
                process.exit.write(self._job.process_dir(process.process_id))

    def _on_stream(self, connection: Connection, message: Message) -> None:
        if connection not in self._relays:
            attempt = self._job.config.attempt
            send = functools.partial(connection.send, attempt=attempt)
            self._relays[connection] = Relay(self._loop.selector, send, self._connect)
        self._relays[connection].on_message(message)

    def _here(self, connection: Connection, message: Message, at: float) -> float:
        """A time of another host as one of this host's clock.

        The clocks are compared within some microseconds to milliseconds. Where order is known
        better, it counts: a message comes after what it tells, and an end that the launcher's
        signal has caused comes after the signal.
        """
        at = min(at + connection.shift_ns / 1e9, time.monotonic())
        return max(at, self._loop.stopping_at) if message.head["after_signal"] else at

    def _on_not_started(self, connection: Connection, message: Message) -> None:
        first, why = int(message.head["process"]), message.head["why"]
        for process in self.members:
            if process.connection is connection and process.process_id >= first:
                process.not_started(is_error=bool(why))
        if why:
            self._loop.could_not_start(first, f"on {connection.host.name}: {why}")

    def _on_loss(self, connection: Connection) -> None:
        # What the loss has caused was seen before the loss: a silent host is noticed late.
        at = min(time.monotonic(), connection.heard_at + PING_SECONDS)
        own = [process for process in self.members if process.connection is connection]
        has_lost = any(process.lives for process in own)
        for process in own:
            process.lost(connection.lost, at)
            self._write_exit(process)
        if relay := self._relays.pop(connection, None):
            relay.close()
        self._watch.lost(connection)
        lost = [process.process_id for process in self.members if process.connection.lost]
        self._send("lost", processes=lost)
        if has_lost:
            self._loop.failed()

    def reaped(self, ended: Sequence[tuple[int, int]]) -> None:
        codes = dict(ended)
        for each in (*self._fleet.connections, *self._watch.connections):
            each.exit_code = codes.get(each.pid, each.exit_code)

    def tick(self, now: float) -> None:
        self._fleet.tick(now)
        self._watch.tick(now)

    # To all hosts

    def hold_output(self, held: bool) -> None:
        self._send("hold", held=held)

    def signal(self, number: int) -> None:
        self._send("signal", number=int(number))

    def _send(self, kind: str, **values: Any) -> None:
        for connection, _ in self._places:
            connection.send(kind, attempt=self._job.config.attempt, **values)

    def sweep(self) -> int:
        self._send("sweep")
        places = self._places
        self._wait(lambda: all(c.lost or c in self._swept for c, _ in places), SWEEP_SECONDS)
        return sum(self._swept.values())

    def _on_swept(self, connection: Connection, message: Message) -> None:
        self._swept[connection] = int(message.head["killed"])
        for process_id, name in message.head["notes"]:
            if name in _run_files.NOTES:
                _run_files.leave_note(self._job.process_dir(int(process_id)), name)
        if (step := message.head["continues_from"]) is not None:
            _run_files.write_continues_from(self._job.process_dir(0), int(step))

    def _wait(self, have_answered: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not have_answered() and time.monotonic() < end:
            self._loop.turn(0.1)

    # Records

    def collect(self) -> None:
        number = self.begin_collecting()
        self._wait(lambda: self.has_collected(number), COLLECT_SECONDS)
        for process in self.members:
            if not (self._job.process_dir(process.process_id) / _run_files.EXIT).exists():
                self._write_exit(process)

    def begin_collecting(self, latest: int | None = None) -> int:
        """Has the agents send the records of their processes; the number of this request.

        ``latest``: so many entries of each device; None: all.
        """
        self._collections += 1
        real = time.time_ns() - time.monotonic_ns()
        for connection, _ in self._places:
            connection.send(
                "collect",
                attempt=self._job.config.attempt,
                shift=connection.shift_ns,
                real=real,
                number=self._collections,
                latest=latest,
            )
        return self._collections

    def has_collected(self, number: int) -> bool:
        """Whether all hosts that can be reached have sent what `begin_collecting` asked for."""
        return all(c.lost or self._collected.get(c, 0) >= number for c, _ in self._places)

    def _on_file(self, connection: Connection, message: Message) -> None:
        self._process(connection, message)
        try:
            attempt = self._job.config.attempt
            host_records.store(self._job.run_dir, attempt, message.head, message.body)
        except OSError as error:  # a full disk must not stop the launcher
            self.not_stored = f"{error}"

    def _on_collected(self, connection: Connection, message: Message) -> None:
        self._collected[connection] = int(message.head["number"])
        if self._query:
            self._query.check()

    # Standard input, which process 0 reads

    def _read_stdin(self, wanted: bool) -> None:
        if wanted == self._stdin_open:
            return
        self._stdin_open = wanted
        if wanted:
            with contextlib.suppress(OSError, ValueError):
                self._loop.selector.register(0, selectors.EVENT_READ, self._on_stdin)
        else:
            with contextlib.suppress(KeyError, ValueError):
                self._loop.selector.unregister(0)

    def _on_stdin(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except OSError:
            data = b""
        self._read_stdin(False)  # until it is taken
        self._places[0][0].send("stdin", data, attempt=self._job.config.attempt)
