"""Jobs without processes: devices that walk through their calls, in any interleaving.

`Job` moves one device at a time and can write down what every process would have recorded so far,
in the engine's own file format. It knows the engine's rules: a collective releases no rank before
all members have begun the same one; a message lets its receiver go when its sender has begun.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from lockstep._run_files import Exit
from lockstep.flight_recorder import format
from lockstep.flight_recorder.format import Entry, Op, ProcessRecord, Ring, State
from lockstep.flight_recorder.run_records import Process, Run, Site

SECOND = 1_000_000_000
STRIDE = 2048


@dataclasses.dataclass(frozen=True)
class Step:
    """A call of one device."""

    clique: int
    program: int
    channel: int = 1
    op: int = Op.ALL_REDUCE
    dtype: int = 9
    elements: int = 4
    reduction: int = 1
    execution: int = 0
    site: int = 0
    source: int = -1
    targets: tuple[int, ...] = ()

    @property
    def call(self) -> tuple:
        """What members have to agree on."""
        values = dataclasses.astuple(self)
        return values if self.op != Op.PERMUTE else (*values[:-2], -1, ())


@dataclasses.dataclass
class Device:
    id: int
    process: int
    steps: list[Step]
    at: int = 0
    inside: bool = False
    entries: list[Entry] = dataclasses.field(default_factory=list)
    ran: dict[tuple[int, bool], int] = dataclasses.field(default_factory=dict)
    at_place: dict[tuple[int, int], Entry] = dataclasses.field(default_factory=dict)
    """Its call at each place, permutes apart."""
    stops_at: int | None = None
    """The step that it never begins."""

    @property
    def through(self) -> bool:
        return not self.inside and self.at >= len(self.steps)


class Job:
    """``cliques``: members (device ids) in rank order; ``plan``: the calls of each device."""

    def __init__(
        self,
        cliques: Sequence[Sequence[int]],
        plan: dict[int, list[Step]],
        *,
        ring: int = 64,
        hosts: Sequence[str] = ("a",),
        identified: bool = True,
        buffered: bool = False,
        sites: dict[int, tuple[Site, ...]] | None = None,
    ) -> None:
        self.cliques = [tuple(c) for c in cliques]
        self.devices = {d: Device(d, d // STRIDE, steps) for d, steps in plan.items()}
        self.processes = max(d.process for d in self.devices.values()) + 1
        self.ring, self.hosts = ring, hosts
        self.identified, self.buffered = identified, buffered
        self.sites = sites or {}
        self.now = 1000

    # --- moving ---

    def able(self) -> list[Device]:
        return [d for d in self.devices.values() if self._can_enter(d) or self._can_leave(d)]

    def _can_enter(self, device: Device) -> bool:
        return not device.inside and device.at < len(device.steps) and device.at != device.stops_at

    def _can_leave(self, device: Device) -> bool:
        if not device.inside:
            return False
        step, entry = device.steps[device.at], device.entries[-1]
        if step.op == Op.PERMUTE:
            return self._messages_came(device, step)
        others = [self._entry_at(m, entry) for m in self.cliques[step.clique]]
        return all(o is not None and self._same(o, entry) for o in others)

    def _entry_at(self, member: int, entry: Entry) -> Entry | None:
        return self.devices[member].at_place.get((entry.clique, entry.sequence))

    @staticmethod
    def _same(a: Entry, b: Entry) -> bool:
        same = (a.signature, a.run_id, a.op_id) == (b.signature, b.run_id, b.op_id)
        return same and not a.other_line(b)

    def _messages_came(self, device: Device, step: Step) -> bool:
        members = self.cliques[step.clique]
        me = members.index(device.id)
        if step.source >= 0:
            mine = self._ordinal(device, step.clique, lambda s: s.source == step.source)
            other = self.devices[members[step.source]]
            if not self._has_message(other, step, mine, lambda s: me in s.targets):
                return False
        if self.buffered:
            return True
        for rank in step.targets:
            mine = self._ordinal(device, step.clique, lambda s, r=rank: r in s.targets)
            if not self._has_message(
                self.devices[members[rank]], step, mine, lambda s: s.source == me
            ):
                return False
        return True

    @staticmethod
    def _ordinal(device: Device, clique: int, belongs) -> int:
        steps = device.steps[: device.at]
        return sum(s.clique == clique and s.op == Op.PERMUTE and belongs(s) for s in steps)

    @staticmethod
    def _has_message(other: Device, step: Step, ordinal: int, belongs) -> bool:
        begun = other.steps[: other.at + other.inside]
        messages = [
            s for s in begun if s.clique == step.clique and s.op == Op.PERMUTE and belongs(s)
        ]
        return len(messages) > ordinal and messages[ordinal].call == step.call

    def move(self, device: Device) -> None:
        self.now += 10
        if device.inside:
            device.inside = False
            device.at += 1
            device.entries[-1] = device.entries[-1]._replace(
                state=State.DONE, arrived_ns=self.now - 5, done_ns=self.now
            )
            return
        step = device.steps[device.at]
        key = (step.clique, step.op == Op.PERMUTE)
        device.inside = True
        device.entries.append(
            Entry(
                number=len(device.entries) + 1,
                clique=self.hash(step.clique),
                run_id=(step.program + step.execution) if self.identified else 0,
                op_id=step.channel if self.identified else 0,
                elements=step.elements,
                bytes=step.elements * 4,
                sequence=device.ran.get(key, 0),
                op=step.op,
                dtype=step.dtype,
                reduction=step.reduction,
                state=State.ENTERED,
                entered_ns=self.now,
                arrived_ns=0,
                done_ns=0,
                rank=self.cliques[step.clique].index(device.id),
                source=step.source,
                target_count=len(step.targets),
                targets=step.targets,
                site=step.site,
            )
        )
        entry = device.entries[-1]
        if not entry.is_permute:
            device.at_place[entry.clique, entry.sequence] = entry
        device.ran[key] = device.ran.get(key, 0) + 1

    def run(self, rng: random.Random, most: int | None = None) -> None:
        """Moves devices until none can, or ``most`` times."""
        while (able := self.able()) and most != 0:
            self.move(rng.choice(able))
            most = None if most is None else most - 1

    # --- writing down ---

    @staticmethod
    def hash(clique: int) -> int:
        return (clique + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF

    def through(self, process: int) -> bool:
        return all(d.through for d in self.of(process))

    def of(self, process: int) -> list[Device]:
        return [d for d in self.devices.values() if d.process == process]

    def file(self, process: int, state: int | None = None) -> bytes:
        """The recorder file of a process as it would be now."""
        if state is None:
            state = format.ProcessState.ENDED if self.through(process) else 0
        host = self.hosts[process % len(self.hosts)]
        offset = self.hosts.index(host) * 77 * SECOND  # each host counts from its own boot
        record = ProcessRecord(
            process=process,
            num_processes=self.processes,
            pid=100 + process,
            host=host,
            label=f"process {process} (pid {100 + process} on host {host})",
            nonce=7,
            state=state,
            monotonic_ns=500 + offset,
            realtime_ns=500 + 1000 * SECOND,
            cliques=tuple((self.hash(i), c) for i, c in enumerate(self.cliques)),
            rings=tuple(
                Ring(d.id, i, len(d.entries), tuple(_shifted(e, offset) for e in d.entries))
                for i, d in enumerate(self.of(process))
            ),
        )
        return format.encode(record, entries=self.ring)

    def process(self, index: int, exit: Exit | None = None) -> Process:
        record = format.parse(self.file(index))
        return Process(index, record, self.sites.get(index, ()), None, exit)

    def snapshot(self, exits: dict[int, Exit] | None = None) -> Run:
        exits = exits or {}
        return Run(tuple(self.process(i, exits.get(i)) for i in range(self.processes)))


def _shifted(entry: Entry, offset: int) -> Entry:
    return entry._replace(
        entered_ns=entry.entered_ns + offset,
        arrived_ns=entry.arrived_ns and entry.arrived_ns + offset,
        done_ns=entry.done_ns and entry.done_ns + offset,
    )


def record_of(run: Run, process: int) -> format.ProcessRecord:
    """The record of a process that has left one."""
    record = run.processes[process].record
    assert record is not None
    return record


def with_entries(
    run: Run, change: Callable[[Entry], Entry], processes: set[int] | None = None
) -> Run:
    """The same run with other entries, of these processes alone if some are named."""

    def changed(one: Process) -> Process:
        if one.record is None or (processes is not None and one.index not in processes):
            return one
        rings = tuple(
            dataclasses.replace(ring, entries=tuple(map(change, ring.entries)))
            for ring in one.record.rings
        )
        return dataclasses.replace(one, record=dataclasses.replace(one.record, rings=rings))

    return dataclasses.replace(run, processes=tuple(map(changed, run.processes)))


def raised(run: Run, at: int, processes: set[int] | None = None) -> Run:
    """Every collective that did not end raised at the moment ``at``."""

    def change(entry: Entry) -> Entry:
        is_open = entry.state == State.ENTERED
        return entry._replace(state=State.RAISED, done_ns=at) if is_open else entry

    return with_entries(run, change, processes)


def site(program: int, channel: int = 1, line: int = 1, name: str | None = None, **more) -> Site:
    """The call site of ``Step(program=..., channel=...)``."""
    values: dict = {
        "program": program,
        "fingerprint": f"fp{program}",
        "module": f"jit_{name or f'f{program}'}",
        "channel": channel,
        "op": "all-reduce",
        "op_name": "jit(f)/psum",
        "file": "/home/u/train.py",
        "line": line,
        "shape": "f32[4]",
    }
    return Site(**(values | more))
