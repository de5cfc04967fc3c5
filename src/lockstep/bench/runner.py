"""Measures every case, in blocks that alternate between the implementations.

A shared machine drifts, so implementations are never measured one after the other: block by block
they take turns (A B, B A, A B, ...), with the copy that gives the machine's limit in between. All
jobs live for the whole run and sleep when it is not their turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lockstep.bench.cases import LARGE, Case, fits
from lockstep.bench.job import JobFailed
from lockstep.bench.stats import loop_count

LOOP_SECONDS = 0.02
BLOCK_SECONDS = 0.1
CALL_SECONDS = 0.02
MIN_SAMPLES, MAX_SAMPLES = 3, 5
"""Bounds the samples of a block: the first collective of a job that has slept is slow."""
MAX_CALLS = 20
COPY_SECONDS = 0.1
MAX_FAILURES = 3


class Driven(Protocol):
    """What the runner needs of a `lockstep.bench.job.BenchJob`."""

    def request(self, order: str, timeout: float, **values: Any) -> list[dict[str, Any]]: ...

    def close(self) -> None: ...


@dataclasses.dataclass
class Measurement:
    """One implementation on one case. Times are seconds of one collective."""

    status: str = "ok"
    """``ok``, ``failed``, ``wrong`` (numbers), or ``skipped``."""
    reason: str = ""
    loop: int = 1
    blocks: list[list[float]] = dataclasses.field(default_factory=list)
    """Samples of each block; a block whose numbers came out wrong is empty."""
    calls: list[float] = dataclasses.field(default_factory=list)
    """Single calls, with dispatch from Python and a fresh result."""
    wrong_blocks: int = 0


@dataclasses.dataclass
class CaseResult:
    case: Case
    by_implementation: dict[str, Measurement]
    copy_rates: list[float] = dataclasses.field(default_factory=list)
    """Bytes read and written per second by all processes together, a value a block."""


class Jobs:
    """The jobs of the run by implementation; one that failed is started again when next needed."""

    def __init__(self, start: Callable[[str], Driven]) -> None:
        self._start = start
        self._running: dict[str, Driven] = {}
        self._failures: dict[str, tuple[int, str]] = {}

    def get(self, implementation: str) -> Driven:
        """The implementation's job. Raises `JobFailed` when it cannot be started.

        One that failed `MAX_FAILURES` times in a row fails again as it did last.
        """
        if implementation not in self._running:
            failures, reason = self._failures.get(implementation, (0, ""))
            if failures >= MAX_FAILURES:
                raise JobFailed(reason)
            self._running[implementation] = self._start(implementation)
        return self._running[implementation]

    def failed(self, implementation: str, error: JobFailed) -> None:
        """Ends the job; after `MAX_FAILURES` in a row it is not started again."""
        failures = self._failures.get(implementation, (0, ""))[0]
        self._failures[implementation] = (failures + 1, str(error))
        job = self._running.pop(implementation, None)
        if job is not None:
            job.close()

    def succeeded(self, implementation: str) -> None:
        self._failures.pop(implementation, None)

    def close(self) -> None:
        for job in self._running.values():
            job.close()
        self._running = {}


def _slowest(answers: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """Sample by sample the time of the slowest process: a collective is over when all are done."""
    return [max(times) for times in zip(*(answer[key] for answer in answers), strict=True)]


@dataclasses.dataclass
class _Turn:
    """One implementation's part in one case."""

    implementation: str
    measurement: Measurement = dataclasses.field(default_factory=Measurement)
    samples: int = 1
    calls: int = 1

    @property
    def alive(self) -> bool:
        return self.measurement.status == "ok"


class Runner:
    """Runs cases one by one; see the module's text for the order.

    ``blocks`` is how often each implementation gets its turn in a case, ``timeout`` the seconds
    that one step of a job may take, ``available`` the bytes of memory that are free, ``copies``
    whether the machine's copy rate is measured too, ``on_gpus`` whether the devices are GPUs.
    """

    def __init__(
        self,
        jobs: Jobs,
        implementations: Sequence[str],
        blocks: int,
        timeout: float,
        available: int,
        copies: bool = True,
        on_gpus: bool = False,
    ) -> None:
        self._jobs = jobs
        self._implementations = tuple(implementations)
        self._blocks = blocks
        self._timeout = timeout
        self._available = available
        self._copies = copies
        self._on_gpus = on_gpus

    def run(self, case: Case) -> CaseResult:
        """Measures ``case``. What fails is in the result; nothing is raised for it."""
        turns = [_Turn(implementation) for implementation in self._implementations]
        result = CaseResult(case, {t.implementation: t.measurement for t in turns})
        too_big = fits(case, len(turns), self._available)
        if too_big is not None:
            for turn in turns:
                turn.measurement.status, turn.measurement.reason = "skipped", too_big
            return result
        for turn in turns:
            self._guarded(turn, lambda job, turn=turn: self._prepare(job, turn, case))
        for block in range(self._blocks):
            for turn in turns if block % 2 == 0 else reversed(turns):
                self._guarded(turn, lambda job, turn=turn: self._block(job, turn))
            if self._copies and case.op == "all_reduce" and case.bytes >= LARGE:
                self._copy(turns, result)
        for turn in turns:
            self._guarded(turn, lambda job: job.request("release", self._timeout))
            self._settle(turn)
        return result

    def _guarded(self, turn: _Turn, step: Callable[[Driven], object]) -> None:
        if not turn.alive:
            return
        try:
            step(self._jobs.get(turn.implementation))
        except JobFailed as error:
            turn.measurement.status, turn.measurement.reason = "failed", str(error)
            self._jobs.failed(turn.implementation, error)

    def _prepare(self, job: Driven, turn: _Turn, case: Case) -> None:
        measurement = turn.measurement
        values = {"case": dataclasses.asdict(case), **({"on_gpus": True} if self._on_gpus else {})}
        answers = job.request("prepare", self._timeout, **values)
        wrong = sum(answer["wrong"] for answer in answers)
        if wrong:
            measurement.status = "wrong"
            measurement.reason = f"{wrong} elements of the result are not what they must be"
            job.request("release", self._timeout)
            return
        # XLA's loops on GPUs may copy a buffer: nothing else is measured beside it there.
        copies = 0 if self._on_gpus else max(answer["copies"] for answer in answers)
        if any(answer["collectives"] != 1 for answer in answers) or copies:
            measurement.status = "failed"
            measurement.reason = (
                f"the compiler made {answers[0]['collectives']} collectives and "
                f"{answers[0]['copies']} copies of one collective a turn: nothing to compare"
            )
            return
        if self._on_gpus and (copied := max(answer["copies"] for answer in answers)):
            measurement.reason = f"with {copied} copies of a buffer each turn"
        self._calibrate(job, turn)

    def _calibrate(self, job: Driven, turn: _Turn) -> None:
        # A single turn is mostly dispatch; a second round with more turns finds the collective.
        k, seconds, call = 1, 0.0, 0.0
        for samples in (1, 3):
            answers = job.request("block", self._timeout, k=k, samples=samples, calls=samples)
            seconds = min(_slowest(answers, "loop")) / k
            call = min(_slowest(answers, "call"))
            if k * seconds >= LOOP_SECONDS:
                break
            k = loop_count(seconds, LOOP_SECONDS)
        turn.measurement.loop = k = loop_count(seconds, LOOP_SECONDS)
        turn.samples = max(MIN_SAMPLES, loop_count(k * seconds, BLOCK_SECONDS, MAX_SAMPLES))
        turn.calls = loop_count(call, CALL_SECONDS, MAX_CALLS)

    def _block(self, job: Driven, turn: _Turn) -> None:
        measurement = turn.measurement
        answers = job.request(
            "block", self._timeout, k=measurement.loop, samples=turn.samples, calls=turn.calls
        )
        if any(answer["wrong"] for answer in answers):
            measurement.wrong_blocks += 1
            measurement.blocks.append([])
            return
        measurement.blocks.append([s / measurement.loop for s in _slowest(answers, "loop")])
        measurement.calls += _slowest(answers, "call")

    def _copy(self, turns: Sequence[_Turn], result: CaseResult) -> None:
        def measure(job: Driven) -> None:
            answers = job.request("copy", self._timeout, seconds=COPY_SECONDS)
            result.copy_rates.append(sum(answer["rate"] for answer in answers))

        measured = len(result.copy_rates)
        for turn in turns:
            if len(result.copy_rates) == measured:
                self._guarded(turn, measure)

    def _settle(self, turn: _Turn) -> None:
        measurement = turn.measurement
        if measurement.wrong_blocks:
            measurement.reason = (
                f"{measurement.wrong_blocks} of {len(measurement.blocks)} blocks gave wrong numbers"
            )
            if not any(measurement.blocks):
                measurement.status = "wrong"
        if measurement.status == "ok":
            self._jobs.succeeded(turn.implementation)
