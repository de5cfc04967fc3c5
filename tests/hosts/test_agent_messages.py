"""The messages of an agent to the supervisor of its job, without a connection."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from lockstep._run_files import ErrorRecord, Exit
from lockstep.hosts import agent_messages
from lockstep.hosts.agent_messages import Ended, Ready
from lockstep.system.channel import BOUNDED, Decoder, Message, encode

RECORD = ErrorRecord(90.0, 7, "ValueError: no data", "Traceback ...")


def exit_of(**values: Any) -> dict[str, Any]:
    ended = Ended(1, Exit(5, exit_code=7), RECORD, was_stopped=False, was_killed=True)
    return {**ended.values(100.0), **values}


def sent(kind: str, values: dict[str, Any]) -> Message:
    """As it arrives."""
    [message] = Decoder(bounds=agent_messages.BOUNDS).feed(encode(kind, b"", BOUNDED, **values))
    return message


def test_what_is_sent_is_read() -> None:
    ready = Ready(1, "node1", {"jax": "0.8.0"})
    assert agent_messages.read(sent("ready", ready._asdict()), 0.0) == ready
    # The reader's clock is 1000 s ahead, and the message needs no time.
    found = agent_messages.read(sent("exit", exit_of()), 1100.0)
    record = dataclasses.replace(RECORD, time=1090.0)
    assert found == Ended(1, Exit(5, exit_code=7), record, False, True)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("leave", {"process": 1}),
        ("ready", {}),
        ("ready", {"process": 1}),
        ("ready", {"process": True, "host": "a"}),
        ("exit", {"process": 1}),
        ("exit", exit_of(exit=None)),
        ("exit", exit_of(exit={"exit_code": "3"})),
        ("exit", exit_of(record=[])),
        ("exit", exit_of(record={"time": 1.0})),
        ("exit", exit_of(record={**dataclasses.asdict(RECORD), "time": math.nan})),
        ("exit", exit_of(record={**dataclasses.asdict(RECORD), "time": -1.0})),
        ("exit", exit_of(record={**dataclasses.asdict(RECORD), "exit_code": math.inf})),
    ],
)
def test_what_is_no_message_is_refused(kind: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        agent_messages.read(sent(kind, values), 100.0)


@pytest.mark.parametrize("letter", ["x", "\n", "\u00e4", "\U0001f600"])
def test_the_longest_record_is_within_the_bounds(letter: str) -> None:
    """Of a recorded error, whose text may be much longer, the end of the traceback is sent."""
    text = letter * (1 << 20) + "the end"
    ended = Ended(1, Exit.of(1), ErrorRecord(0.0, 1, text, text), False, False)
    found = agent_messages.read(sent("exit", ended.values(0.0)), 0.0)
    assert isinstance(found, Ended)
    assert found.record
    assert found.record.traceback.endswith("the end")
    assert len(found.record.traceback) == 1 << 16
