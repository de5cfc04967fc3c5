"""What a process publishes of itself, and what is made of it."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from lockstep._errors import RecordError
from lockstep.flight_recorder import diagnose, phrases
from lockstep.flight_recorder.format import Entry, Op, ProcessRecord, Ring, State
from lockstep.flight_recorder.run_records import Caller
from lockstep.programs import compilations
from lockstep.programs.compilations import Program
from lockstep.watchdog import store_state as state
from lockstep.watchdog.still_thread import Limit
from lockstep.watchdog.store_state import Missing, ProcessState


def entry(number: int, done: bool = True, elements: int = 8) -> Entry:
    kind = State.DONE if done else State.ENTERED
    at = 1_000_000 * number
    return Entry(number, 5, 0, 1, elements, 4, number - 1, 0, 9, 0, kind, at, 0, at * done, 0)


def of(
    index: int,
    *entries: Entry,
    inside: str = "",
    compiles: Program | None = None,
    ended: bool = False,
    launches: Program | None = None,
) -> ProcessState:
    own = tuple(e._replace(rank=index) for e in entries)
    members = tuple(index if rank == index else -1 for rank in range(2))
    record = ProcessRecord(
        index,
        2,
        7,
        "a",
        f"process {index} (pid 7 on a)",
        state=int(ended),
        cliques=((5, members),),
        rings=(Ring(index, 0, len(own), own),),
    )
    callers = {9: (Caller("/a/train.py", 3, "step", "1-5"),)}
    place = f"train.py:{40 + index}"
    return ProcessState(index, record, callers, "File ...", place, inside, 31.0, compiles, launches)


def test_a_state_is_the_same_after_its_way_through_the_store() -> None:
    program = Program("jit_step", "train.py:3", "ab12", (0, 1), "", b"packed")
    sent = of(1, entry(1), entry(2, done=False), compiles=program)
    programs, left = {77: program.without_module()}, "sys.exit() at train.py:7"
    sent = dataclasses.replace(sent, programs=programs, left=left)
    received = ProcessState.from_json(1, json.loads(json.dumps(sent.to_json())))
    assert received == sent
    assert phrases.ending(received.as_process(1)) == f"ended by {left}"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda values: values.pop("record"),
        lambda values: values.update(record="no base64"),
        lambda values: values.update(record="AAAA"),
        lambda values: values.update(callers={"x": []}),
        lambda values: values.update(callers={"1": [["file"]]}),
        lambda values: values.update(still="long"),
        lambda values: values.update(compiles={"name": "x"}),
    ],
)
def test_what_no_process_publishes_is_refused(spoil: Any) -> None:
    values = of(0, entry(1)).to_json()
    spoil(values)
    with pytest.raises(RecordError, match="process 0 has published no state"):
        ProcessState.from_json(0, values)


def test_who_has_not_arrived_is_known_without_his_answer() -> None:
    waiting = of(0, entry(1), entry(2, done=False))
    label = "process 1 (pid 8 on b)"
    found = state.judge([waiting, None], {1: Missing(label)})
    assert (found.kind, found.culprits) == (diagnose.Kind.WAITING, (1,))
    assert label in state.report(found, [waiting, None], {1: Missing(label, stack="File x")})
    assert "does meanwhile:\n    File x" in state.report(
        found, [waiting, None], {1: Missing(label, stack="File x")}
    )


def test_one_that_is_gone_is_a_fault() -> None:
    waiting = of(0, entry(1), entry(2, done=False))
    found = state.judge([waiting, None], {1: Missing("process 1", is_gone=True)})
    assert found.kind.is_fault
    assert found.culprits == (1,)


def test_one_that_has_ended_is_a_fault() -> None:
    states = [of(0, entry(1), entry(2, done=False)), of(1, entry(1), ended=True)]
    found = state.judge(states, {})
    assert (found.kind, found.culprits) == (diagnose.Kind.ENDED, (1,))


def test_progress_is_what_has_begun_and_ended() -> None:
    before, after = of(0, entry(1, done=False)), of(0, entry(1))
    assert state.progress(before.record) != state.progress(after.record)
    assert state.waits(before.record)
    assert not state.waits(after.record)
    queued = entry(1, done=False)._replace(op_id=-1)
    assert not state.waits(of(0, queued).record)  # the device computes something else


# The compiler


def program(scale: float = 2.0, name: str = "step", size: int = 8) -> Program:
    def function(x: Any) -> Any:
        return (x * scale).sum()  # SCALE

    function.__name__ = name
    module = jax.jit(function).lower(np.ones(size, "float32")).compiler_ir()
    devices = [SimpleNamespace(id=number, process_index=number) for number in range(2)]
    return dataclasses.replace(compilations._described(module, devices), at="train.py:41")


def test_programs_that_differ_are_told_by_what_differs() -> None:
    states = [of(k, inside="compile", compiles=program(2.0 + k)) for k in range(2)]
    text, for_all = state.stands_in_jax(states, {}, 0, range(2), Limit.TIMEOUT, 0)
    assert for_all
    assert text.startswith(
        "process 1 runs another program than process 0: in step (train.py:41) a constant is 3.0 on "
        "process 1, 2.0 on process 0, test_store_state.py:"
    )
    assert "# SCALE. On GPUs XLA waits until all processes compile one program." in text


def test_the_same_program_everywhere_is_no_news() -> None:
    states = [of(k, inside="compile", compiles=program()) for k in range(2)]
    assert state.stands_in_jax(states, {}, 0, range(2), Limit.TIMEOUT, 0) == ("", False)


def test_one_that_compiles_alone_hears_where_the_others_are() -> None:
    states = [of(0, inside="compile", compiles=program()), of(1)]
    text, for_all = state.stands_in_jax(states, {}, 0, range(2), Limit.TIMEOUT, 0)
    assert not for_all
    assert "process 0 has been compiling step (train.py:41) for 31 s (train.py:40)" in text
    assert text.endswith("process 1 is at train.py:41.")


def test_one_that_waits_in_the_compiler_longer_than_the_limit_fails_all() -> None:
    waits = of(0, inside="compile", compiles=program())
    text, for_all = state.stands_in_jax([waits, of(1)], {}, 0, range(2), Limit.WAIT, 31.0)
    assert for_all
    assert text == (
        "a compilation has waited 31 s (--collective-timeout). process 0 compiles step "
        "(train.py:41), which XLA does on GPUs on all processes of a program together; process 1 "
        "is at train.py:41"
    )
    elsewhere = of(2, inside="compile", compiles=program())
    states = [waits, of(1), elsewhere]
    assert state.stands_in_jax(states, {}, 0, (0, 2), Limit.WAIT, 31.0) == ("", False)
    running = [of(0, inside="block_until_ready"), of(1)]
    for_all = state.stands_in_jax(running, {}, 0, range(2), Limit.WAIT, 31.0)[1]
    assert not for_all, "a long kernel"


def test_a_launch_that_waits_for_another_longer_than_the_limit_fails_all() -> None:
    launches = of(0, inside="__call__", launches=program())
    text, for_all = state.stands_in_jax([launches, of(1)], {}, 0, range(2), Limit.TIMEOUT, 0)
    assert for_all
    assert text == (
        "a launch has waited 31 s (--collective-timeout). process 0 launches step (train.py:41), "
        "for which NCCL makes a communicator on all processes of the program together; process 1 "
        "is at train.py:41"
    )
    told = state.stands_in_jax([launches, of(1)], {}, 0, range(2), Limit.WARNING, 0)
    assert told[0].startswith("process 0 has been launching step (train.py:41) for 31 s")
    assert not told[1]
    both = [launches, of(1, inside="__call__", launches=program())]
    assert state.stands_in_jax(both, {}, 0, range(2), Limit.TIMEOUT, 0) == ("", False)


def test_one_that_does_not_answer_is_waited_for() -> None:
    launches = of(0, inside="__call__", launches=program())
    missing = {1: Missing("process 1 (pid 7 on a)", "it is stopped, by a signal")}
    text, for_all = state.stands_in_jax([launches, None], missing, 0, range(2), Limit.TIMEOUT, 0)
    assert for_all
    assert text.endswith("process 1 (pid 7 on a) does not answer: it is stopped, by a signal")
    elsewhere = state.stands_in_jax([launches, None], missing, 0, (0,), Limit.TIMEOUT, 0)
    assert elsewhere == ("", False)


def test_programs_that_differ_in_their_names_are_told_by_these() -> None:
    compiled = {0: program(), 1: program(name="evaluate")}
    assert str(compilations.explain(compiled)) == (
        "process 1 runs another program than process 0: evaluate (train.py:41) and not step "
        "(train.py:41)"
    )


def test_a_program_that_is_too_long_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilations, "MAX_MODULE", 100)
    received = Program.from_json(json.loads(json.dumps(program().to_json())))
    assert received.module == b""
    text = str(compilations.explain({0: received, 1: program(3.0)}))
    assert "in step (train.py:41) one program on process 1, another one of that name on" in text


# Launches


def launch(number: int, run_id: int) -> Entry:
    return entry(number)._replace(run_id=run_id, op=Op.PROGRAM, op_id=1)


def test_other_launches_at_one_place_are_told_with_their_programs() -> None:
    programs = [program(2.0), program(3.0)]
    states = [
        dataclasses.replace(of(k, launch(1, 5 + k)), programs={5 + k: programs[k]})
        for k in range(2)
    ]
    found = state.judge(states, {})
    assert state.launched_at(found, states) == dict(enumerate(programs))
    difference = compilations.explain(state.launched_at(found, states))
    told = state.judge(states, {}, difference)
    assert (told.kind, told.culprits) == (diagnose.Kind.PROGRAMS, (0, 1))
    assert "a constant is 3.0 on process 1, 2.0 on process 0" in state.report(told, states, {})
