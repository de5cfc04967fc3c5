"""The agent of ``lockstep run --hosts`` on one host: starts, watches and ends its processes.

The launcher starts it over ssh (`lockstep.hosts.starters`), and talks to it over its stdin and
stdout (`lockstep.system.channel`). It has a guard (`guard`), so a kill -9 of either of its two
processes leaves nothing running. It ends, with all that it has started, when its input ends or when
its lease is over (`lease`): the launcher was killed, or the network is cut.

The loop is that of `agent`; each check before a start has a thread. The processes are the same
`ChildProcess`es as on one host; what the supervisor does with them there (output, recorded errors,
exits), the agent reports in messages, with times of its own clock.

Messages of the launcher, and what is answered: ``ping`` (``pong``), ``reserve`` (``reserved``),
the checks of `agent_checks`,
``start`` (``not_started``, then ``output``, ``error`` and ``exit`` of each process), ``signal``,
``lost``, ``hold``, ``stdin`` (``stdin_taken``), ``collect`` (``file``..., ``collected``), ``sweep``
(``swept``). An agent that ends before its input does reports why (``leaving``).
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import __version__
from lockstep._errors import LaunchError, LockstepError
from lockstep._stderr import complain
from lockstep.hosts.agent import Agent
from lockstep.hosts.checks import agent_checks
from lockstep.hosts.host_attempt import HostAttempt
from lockstep.processes import failed_runs, guard, run_dir
from lockstep.processes.preload import Preloaded
from lockstep.system import port_reservation, process_tree, signal_pipe
from lockstep.system.channel import GREETING, Channel, Message


def main() -> int:
    """Serves one launcher until it leaves; the exit status."""
    own = _private_descriptors()
    channel = Channel(*own, after_greeting=False)
    channel.send_raw(GREETING)
    try:
        folder = _folder(sys.argv[1:])
    except LockstepError as error:
        complain(str(error))
        return 1
    return guard.run_guarded(
        lambda lifeline: HostAgent(channel, lifeline, folder).run(), folder, words=guard.OF_A_HOST
    )


def _folder(arguments: Sequence[str]) -> Path:
    """The private directory: on the launcher's host in the launcher's, which removes it too."""
    if not arguments:
        return run_dir.make_locked()[0]
    path = Path(arguments[0]) / f"host_{os.getpid()}"
    path.mkdir(mode=0o700)
    return path


def _private_descriptors() -> tuple[int, int]:
    """The connection, moved away from 0 and 1, where a library might print."""
    reads, writes = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return reads, writes


class HostAgent(Agent):
    """Does what the launcher's messages say."""

    def __init__(self, channel: Channel, lifeline: int, folder: Path) -> None:
        """``folder``: the private directory of this host's processes."""
        super().__init__(channel)
        self._folder = folder
        self._lifeline = lifeline
        self._preloaded = Preloaded()
        self._over = False
        self._reservations: list[Any] = []
        self._attempt: HostAttempt | None = None
        self._checks = agent_checks.AgentChecks()
        self._actions: dict[str, Callable[[Message], None]] = {
            "reserve": self._on_reserve,
            "start": self._on_start,
            **dict.fromkeys(agent_checks.ANSWERS, self._on_check),
        }

    def run(self) -> int:
        """Serves until the launcher leaves."""
        self._listen()
        self.send("hello", **facts())
        while not self._over:
            self.turn(self._attempt.longest_turn if self._attempt else 1.0)
            if self._attempt:
                self._attempt.after_turn()
        return 0

    def _listen(self) -> None:
        handled = {*guard.PASSED_ON, signal.SIGCHLD}
        signal_pipe.register(self.selector, handled, self._on_signal)
        self.watch(self._lifeline, self._on_end_of_guard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    @property
    def runs(self) -> bool:
        return self._attempt is not None and self._attempt.runs

    # The end

    def on_loss(self, why: str) -> None:
        if why:
            self._leave(why)
        self._end()

    def on_lease_over(self, why: str) -> None:
        self._leave(why)

    def _leave(self, why: str) -> None:
        """Ends as `_end` does, and tells the cause: to the launcher, which does not know it, and on
        this host, because the launcher may be out of reach."""
        if not self._over:
            self.send("leaving", why=why)
            what = self._attempt.words if self._attempt and self.runs else "no processes"
            self._end()
            failed_runs.log_end(f"the agent has ended, with {what}: {why}")

    def _on_end_of_guard(self) -> None:
        # The launcher sees better than this process how it ended, but not whether anything is left.
        self.send("leaving", why="")
        self._end()

    def _end(self) -> None:
        """Ends all processes of this host: `guard` kills what is left, and removes the folder."""
        if not self._over:
            self._over = True
            process_tree.end_all()

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGCHLD:
            self._leave(f"it got {signal.Signals(number).name}")
        elif self._attempt:
            self._attempt.reaped(process_tree.reap())
        else:
            process_tree.reap()

    # Messages

    def on_message(self, message: Message) -> None:
        if action := self._actions.get(message.kind):
            action(message)
        elif self._attempt:
            self._attempt.on_message(message)
        else:
            self._answer_without_attempt(message)

    def _on_reserve(self, message: Message) -> None:
        """Takes a port of the address for JAX's coordination service, and holds it."""
        try:
            held = port_reservation.reserve(str(message.head["host"]), int(message.head["port"]))
        except (LaunchError, OverflowError) as error:
            self.send("reserved", problem=str(error))
            return
        self._reservations.append(held)
        self.send("reserved", address=port_reservation.address(held))

    def _on_check(self, message: Message) -> None:
        """Answers from a thread, so that the agent gives signs of life meanwhile."""
        reads, writes = os.pipe()
        values: dict[str, Any] = {}
        problem: list[BaseException] = []

        def check() -> None:
            try:
                values.update(self._checks.answer(message.kind, message.head))
            except BaseException as error:
                problem.append(error)
            finally:
                os.close(writes)

        thread = threading.Thread(target=check, daemon=True)

        def done() -> None:
            self.selector.unregister(reads)
            os.close(reads)
            thread.join()  # there is no thread when processes are started
            for error in problem:
                raise error
            self.send(agent_checks.ANSWERS[message.kind], **values)

        self.watch(reads, done)
        thread.start()

    def _on_start(self, message: Message) -> None:
        if self._attempt:
            self._attempt.close()
            process_tree.end_all(self._preloaded.pids)
        self._attempt = None
        try:
            self._attempt = HostAttempt(self, message.head, self._folder, self._preloaded)
        except LockstepError as error:  # a variable of this host's environment, say
            attempt, process = message.head["attempt"], message.head["first"]
            self.send("not_started", attempt=attempt, process=process, why=str(error))
            return
        self._attempt.start()

    def _answer_without_attempt(self, message: Message) -> None:
        """Nothing was started, so there is nothing to end and nothing to send."""
        attempt = message.head.get("attempt")
        if message.kind == "sweep":
            self.send("swept", attempt=attempt, killed=0, notes=[], continues_from=None)
        elif message.kind == "collect":
            self.send("collected", attempt=attempt, number=message.head["number"])


def facts() -> Mapping[str, Any]:
    """What the launcher has to know of this host before the start."""
    return {"version": __version__, "node": platform.node(), "pid": os.getpid()}


if __name__ == "__main__":
    sys.exit(main())
