"""Runs ``programs/fault.py`` under ``lockstep run``, and reads what its processes said."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import Result, start_lockstep

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = PROGRAMS / "fault.py"
HEAD = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
me, count = jax.process_index(), jax.device_count()
rows = NamedSharding(jax.make_mesh((count,), ("x",), (AxisType.Auto,)), P("x"))
"""
"""How the programs begin that are no file."""
TIMEOUT = 120
DEADLINE = 60.0
"""Of a collective: an error that comes by the deadline only has come too late. How long an error
takes is measured by benchmarks/faults.py and stands in docs/reference/faults.md."""


def line(name: str, program: Path = PROGRAM) -> str:
    """``fault.py:68``, the line that is marked with ``# LINE name``."""
    for number, text in enumerate(program.read_text().splitlines(), 1):
        if text.endswith(f"# LINE {name}"):
            return f"{program.name}:{number}"
    raise AssertionError(f"{program} has no line {name}")


@dataclasses.dataclass(frozen=True)
class Told:
    """What one process said, and how it ended."""

    said: Mapping[str, Any]
    status: int | None

    def raised(self) -> str:
        """The text of its exception."""
        assert "raised" in self.said, self
        return self.said["raised"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    result: Result
    processes: list[Told]

    def assert_raised(self, process: int, culprit: int, words: Sequence[str]) -> None:
        """That a process raised before the deadline, with these words, and lived on."""
        told = self.processes[process]
        text = told.raised()
        for word in words:
            assert re.search(word, text), f"process {process}: no {word!r} in {text}"
        assert "planted" in self.processes[culprit].said, self.result
        assert "waited 60 s" not in text, text
        assert told.said["saved"] == 10.0
        assert not {"number", "wrong", "going", "finished"} & told.said.keys(), self.result


def told_by(result: Result, processes: int, statuses: Mapping[int, int | None]) -> list[Told]:
    found = []
    for process in range(processes):
        said: dict[str, Any] = {}
        for text in result.by_process.get(process, []):
            if text.startswith("{"):
                said.update(json.loads(text))
        found.append(Told(said, statuses.get(process)))
    return found


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "lockstep" in name}


def run_fault(
    fault: str,
    *,
    culprit: int = 1,
    n: int = 2,
    d: int = 1,
    options: Sequence[str] = (),
) -> Outcome:
    """Runs a fault to its end; fails when the job hangs or leaves something behind."""
    args = ["-n", str(n), "-d", str(d), "--grace", "60", *options]
    args += ["--collective-timeout", str(DEADLINE)]
    before = shared_memory()
    with start_lockstep(args, PROGRAM, [fault, str(culprit)], forked=True) as run:
        result = run.finish(TIMEOUT)
        statuses = ended_with(run.folder)
        assert shared_memory() <= before
    return Outcome(result, told_by(result, n, statuses))


def ended_with(folder: Path) -> dict[int, int | None]:
    """How the processes of a failed run ended: exit codes, and signals as negative numbers."""
    statuses = {}
    for path in folder.glob("lockstep-failed-*/*/attempt_0/process_*/exit.json"):
        ending = json.loads(path.read_text())
        code, number = ending["exit_code"], ending["signal"]
        statuses[int(path.parent.name.removeprefix("process_"))] = -number if number else code
    return statuses
