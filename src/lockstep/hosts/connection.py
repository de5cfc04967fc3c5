"""The launcher's connection to its agent on one host.

The launcher sends a sign of life every `lease.PING_SECONDS`; a host that answers nothing for
`lease.SILENCE_SECONDS` is lost, and its agent has ended by then. So a cut network ends the job on
the other side first. TCP would take minutes to report it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep._words import printable, signal_name
from lockstep.hosts import lease
from lockstep.hosts.host_list import Host
from lockstep.hosts.lease import SILENCE_SECONDS
from lockstep.hosts.starters import is_here
from lockstep.processes.process_start import popen
from lockstep.system import process_tree
from lockstep.system.channel import Channel, ChannelError, Message
from lockstep.system.remote_clock import RemoteClock

_CLOCKS = 64
"""So many last answers tell the clock of the host: clocks drift by some ms in this time."""
_MAX_STDERR = 1 << 14
_SHOWN = 1000
_NOT_FOUND, _SSH_FAILED = 127, 255

OnMessage = Callable[["Connection", Message], None]
OnLoss = Callable[["Connection"], None]


class Connection:
    """One host, whose agent has been started. It reports to the functions given to `attach`."""

    def __init__(self, host: Host, label: str, command: Sequence[str]) -> None:
        """Starts ``command``, whose stdin and stdout are the connection.

        Where it cannot be started, the host is lost from the beginning. Raises OSError where there
        are no descriptors left.
        """
        self.host = host
        self.label = label
        """Its name in the output and in errors."""
        self.lost = ""
        """Why the host is lost; "": it is not."""
        self.facts: Mapping[str, Any] = {}
        """What its agent has said of the host in its first message."""
        self._answers = lease.Answers(time.monotonic())
        (reads, out), (inp, writes), (self._stderr_fd, err) = (os.pipe() for _ in range(3))
        self._channel = Channel(reads, writes, after_greeting=True)
        os.set_blocking(self._stderr_fd, False)
        self._stderr = b""
        self.exit_code: int | None = None
        """How the command ended that started the agent; None: not yet."""
        self._clocks: collections.deque[RemoteClock] = collections.deque(maxlen=_CLOCKS)
        self._program = os.path.basename(command[0])
        self._is_agent = is_here(host) and self._program != "srun"
        """Whether the command is the agent itself, and not what connects to it."""
        self._leaves = False
        """Whether its agent has reported that it ends all its processes."""
        self.parting = ""
        """Why its agent ends, as that has reported; "": it has not."""
        self._ticked_at: float | None = None
        self._pause = 0.0
        """The longest time between two calls of `tick`: the launcher stood still meanwhile."""
        self._selector: selectors.BaseSelector | None = None
        self._on_message: OnMessage = lambda connection, message: None
        self._on_loss: OnLoss = lambda connection: None
        try:
            self.pid = popen(
                command, _prepare, stdin=inp, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            self.pid, self.exit_code = -1, _NOT_FOUND
            self.lose(f"no agent could be started on {host.name}: {error}")
        finally:
            for fd in (inp, out, err):
                os.close(fd)

    # Events

    def attach(
        self, selector: selectors.BaseSelector, on_message: OnMessage, on_loss: OnLoss
    ) -> None:
        """Reports to these functions from now on, when ``selector`` calls its keys' data."""
        self._selector, self._on_message, self._on_loss = selector, on_message, on_loss
        if not self.lost:
            selector.register(self._channel.reads, selectors.EVENT_READ, self._read)
            if self._stderr_fd >= 0:
                selector.register(self._stderr_fd, selectors.EVENT_READ, self._read_stderr)
            self._channel.write_by(selector)

    def detach(self) -> None:
        """Leaves the selector. What arrives meanwhile waits for the next `attach`."""
        if self._selector is not None:
            for fd in (self._channel.reads, self._channel.writes, self._stderr_fd):
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(fd)
        self._selector = None

    def tick(self, now: float) -> None:
        """Sends a sign of life when one is due, and notices a host that answers nothing."""
        if self.lost:
            return
        self._note_pause()
        if ping := self._answers.ping(now, time.monotonic_ns()):
            self.send("ping", **ping)
        if self._answers.is_silent(now):
            self.lose(
                f"its host was lost: no answer from {self.host.name} for {SILENCE_SECONDS:g} s. Is "
                "the machine up, and the network?"
            )

    def _read(self) -> None:
        try:
            messages = self._channel.receive()
        except ChannelError as error:
            self.lose(f"the connection to {self.host.name} failed: {error}")
            return
        self._answers.heard(time.monotonic())
        for message in messages:
            if message.kind == "pong":
                self._on_pong(message)
            elif message.kind == "leaving":
                self._leaves = True
                self.parting = printable(str(message.head.get("why")), _SHOWN)
            elif not self.lost:
                if message.kind == "hello":
                    self._answers.begun(time.monotonic())
                self._on_message(self, message)
        if self._channel.closed:
            self._read_stderr()
            self.lose(self._why_ended())

    def _on_pong(self, message: Message) -> None:
        received = time.monotonic_ns()
        with contextlib.suppress(KeyError, TypeError, ValueError):
            asked, at = int(message.head["t"]), int(message.head["at"])
            self._answers.answered(asked, received / 1e9)
            self._clocks.append(RemoteClock(asked - at, received - at))

    def _read_stderr(self) -> None:
        try:
            data = os.read(self._stderr_fd, 1 << 14) if self._stderr_fd >= 0 else b""
        except BlockingIOError:
            return
        self._stderr = (self._stderr + data)[-_MAX_STDERR:]
        if not data and self._stderr_fd >= 0:
            if self._selector is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(self._stderr_fd)
            os.close(self._stderr_fd)
            self._stderr_fd = -1

    def lose(self, why: str) -> None:
        """Gives the host up, once."""
        if not self.lost:
            self.lost = why
            self.detach_for_good()
            self._on_loss(self)

    def close_input(self) -> None:
        """Asks the agent to end: it reads the end of its input."""
        if not self.lost:
            self.detach()
            self._channel.close_input()

    def detach_for_good(self) -> None:
        """Closes the connection; the agent ends, and with it all that it has started."""
        self.lost = self.lost or "the connection is closed"
        self.detach()
        if self._channel.reads >= 0:
            self._channel.close()
        if self._stderr_fd >= 0:
            os.close(self._stderr_fd)
            self._stderr_fd = -1
        process_tree.kill({self.pid} if self.exit_code is None else set(), signal.SIGTERM)

    # Sending

    def send(self, kind: str, body: bytes = b"", **values: Any) -> None:
        """Sends a message, as soon as the connection takes it. Nothing happens once it is lost."""
        if not self.lost:
            self._channel.send(kind, body, **values)
            if self._selector is not None:
                self._channel.write_by(self._selector)

    # What is known of the host

    @property
    def greeted(self) -> bool:
        """Whether an agent has answered."""
        return self._channel.greeted

    @property
    def shift_ns(self) -> int:
        """To be added to times of the host's monotonic clock to get times of this host's."""
        return min(self._clocks, key=lambda clock: clock.error, default=RemoteClock(0, 0)).shift

    @property
    def stderr(self) -> str:
        """The last lines that ssh or the agent have written."""
        return self._stderr.decode("utf-8", "replace").strip()

    @property
    def heard_at(self) -> float:
        """When the last message has arrived."""
        return self._answers.heard_at

    @property
    def may_run_until(self) -> float:
        """When the processes of a lost host have ended at the latest, by this clock.

        That is not known at once where the connection broke: the host may have lost its network.
        """
        has_ended = self._is_agent or self._leaves or self._has_passed_on()
        return self.heard_at if has_ended else self._answers.may_run_until

    def _has_passed_on(self) -> bool:
        """Whether the exit code is that of the agent, and not of what connects to it."""
        passes_on = self._program == "ssh" or not self._stderr
        return self.exit_code in range(_SSH_FAILED) and passes_on

    def _note_pause(self) -> None:
        # This clock goes on while the machine is suspended.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._pause = max(self._pause, now - (self._ticked_at or now))
        self._ticked_at = now

    def _why_ended(self) -> str:
        if self.exit_code is None:
            with contextlib.suppress(ChildProcessError):
                self.exit_code = _exit_code_soon(self.pid)
        host, code = self.host.name, self.exit_code
        said = printable(" ".join(self.stderr.split()), _SHOWN)
        noise = "" if self.greeted else printable(self._channel.noise.decode(errors="replace"), 200)
        text = said or noise.strip()
        how = f": {text}" if text else ""
        if not self.greeted:
            return f"no agent could be started on {host}: {self._how()}{how}"
        if self.parting:
            return (
                f"its host was lost: the agent on {host} has ended: {self.parting}{self._still()}"
            )
        if code is not None and code < 0 and not self._is_agent:
            what = f"{self._program} to {host} (process {self.pid} on this machine)"
            return f"its host was lost: {what} was killed by {signal_name(-code)}{how}"
        return f"its host was lost: the agent on {host} has ended: {self._how()}{how}"

    def _still(self) -> str:
        self._note_pause()
        if self._pause < SILENCE_SECONDS / 2:
            return ""
        return (
            f". The launcher stood still for {self._pause:.0f} s: was it stopped, was its machine "
            "suspended, or did it get no core?"
        )

    def _how(self) -> str:
        code = self.exit_code
        if code is None:
            return "its connection was closed"
        if code < 0:
            return f"killed by {signal_name(-code)}"
        if code == _SSH_FAILED and self.greeted:
            return "ssh's exit code is 255, so the agent was killed, or the connection broke"
        if code == _SSH_FAILED:
            return "ssh failed, exit code 255"
        if code == _NOT_FOUND:
            return "exit code 127: there is no such command there"
        return f"exit code {code}"


def _exit_code_soon(pid: int) -> int | None:
    """The exit code of a child whose output has ended, and which is about to end."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _prepare() -> None:
    # Runs between fork and exec. The launcher blocks signals while it connects.
    process_tree.end_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
