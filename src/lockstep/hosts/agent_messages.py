"""What an agent sends to the supervisor of its job (`joined_agents`). Pure.

They are read at one place, which raises ValueError for what another program has
sent; what acts on them may raise for faults of its own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from lockstep._run_files import ErrorRecord, Exit
from lockstep.system.channel import Bounds, Message

_MAX_TRACEBACK = 1 << 16
_MAX_SUMMARY = 1 << 12
_MAX_ESCAPED = 12
"""Bytes of a character in JSON: two escapes of 6."""
BOUNDS = Bounds(_MAX_ESCAPED * (_MAX_TRACEBACK + _MAX_SUMMARY) + (1 << 16), 0)
"""How long a message may be: an error, and little else."""


class Ready(NamedTuple):
    """The agent can start its program."""

    process: int | None
    """None: it has no number, and asks for one (`joining`)."""
    host: str
    """Its name."""
    same: dict[str, str]
    """What has to be equal on all hosts: see `joining.same_on_all`."""


class Pong(NamedTuple):
    """The answer to a sign of life."""

    question: int


class Ended(NamedTuple):
    """How the program of an agent has ended."""

    process: int
    exit: Exit
    record: ErrorRecord | None
    """The error that it had recorded; its ``time`` is one of the reader's clock."""
    was_stopped: bool
    """Whether a signal to the agent has asked for the end."""
    was_killed: bool
    """Whether the program had not ended within the grace period."""

    def values(self, now: float) -> dict[str, Any]:
        """As `read` takes it. Clocks of hosts differ, so the record has the seconds since."""
        error = None
        if self.record:
            error = dataclasses.asdict(self.record.shortened(_MAX_SUMMARY, _MAX_TRACEBACK))
            error["time"] = now - self.record.time
        return {**self._asdict(), "exit": dataclasses.asdict(self.exit), "record": error}


def read(message: Message, now: float) -> Ready | Pong | Ended:
    """What ``message`` says, which has arrived at ``now``. Raises ValueError."""
    head = message.head
    try:
        if message.kind == "pong":
            return Pong(_number(head["t"]))
        if message.kind == "ready":
            process = None if head["process"] is None else _number(head["process"])
            same = {str(name): str(value) for name, value in dict(head["same"]).items()}
            return Ready(process, str(head["host"]), same)
        process = _number(head["process"])
        if message.kind == "exit":
            ending, record = Exit.of_values(head["exit"]), _record(head["record"], now)
            was_stopped, was_killed = bool(head["was_stopped"]), bool(head["was_killed"])
            return Ended(process, ending, record, was_stopped, was_killed)
    except (LookupError, TypeError) as error:
        raise ValueError(f"{error!r} in a message ({message.kind})") from None
    raise ValueError(f"not a message of an agent: {message.kind}")


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"not a whole number: {value!r}")
    return value


def _record(values: Any, now: float) -> ErrorRecord | None:
    if values is None:
        return None
    record = ErrorRecord.of_values(values)
    if not 0 <= record.time < math.inf:
        raise ValueError(f"no seconds since an error: {record.time}")
    return dataclasses.replace(record, time=now - record.time)
