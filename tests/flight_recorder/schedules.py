"""Random correct schedules, and one divergence planted in them."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from flight_recorder.simulate import STRIDE, Step
from lockstep.flight_recorder.format import Op


@dataclasses.dataclass(frozen=True)
class Schedule:
    cliques: tuple[tuple[int, ...], ...]
    plan: dict[int, list[Step]]
    identified: bool

    @property
    def processes(self) -> int:
        return max(self.plan) // STRIDE + 1


@st.composite
def schedules(draw: st.DrawFn, permutes: bool = True, identified: bool | None = None) -> Schedule:
    """Every device runs the same list of collectives, those of whose clique it is a member."""
    processes = draw(st.integers(2, 4))
    per_process = draw(st.integers(1, 2))
    everyone = [p * STRIDE + i for p in range(processes) for i in range(per_process)]
    subsets = st.lists(st.sampled_from(everyone), min_size=2, unique=True)
    cliques = draw(st.lists(subsets, min_size=1, max_size=3, unique_by=frozenset))
    if draw(st.booleans()):
        cliques[0] = everyone
    known = draw(st.booleans()) if identified is None else identified
    plan: dict[int, list[Step]] = {device: [] for device in everyone}
    executions: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 12))):
        clique = draw(st.integers(0, len(cliques) - 1))
        op = draw(st.sampled_from([Op.ALL_REDUCE, Op.ALL_REDUCE, Op.ALL_GATHER, Op.PERMUTE]))
        # A program is what it runs: the same line is a permute or a sum, not both.
        kind = draw(st.integers(1, 3)) * 1000 + int(op) * 100_000 + clique * 1_000_000
        executions[kind] = executions.get(kind, -1) + 1
        step = Step(clique, kind, op=op, reduction=int(op == Op.ALL_REDUCE))
        step = dataclasses.replace(step, execution=executions[kind])
        if op == Op.PERMUTE and permutes:
            pairs = draw(_pairs(len(cliques[clique])))
            for device, own in _permute(step, cliques[clique], pairs).items():
                plan[device].append(own)
        elif op != Op.PERMUTE:
            for device in cliques[clique]:
                plan[device].append(step)
    return Schedule(tuple(tuple(c) for c in cliques), plan, known)


@st.composite
def _pairs(draw: st.DrawFn, ranks: int) -> list[tuple[int, int]]:
    targets = draw(st.permutations(range(ranks)))
    keep = draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks))
    return [(s, t) for s, (t, k) in enumerate(zip(targets, keep, strict=True)) if k and s != t]


def _permute(step: Step, members: list[int], pairs: list[tuple[int, int]]) -> dict[int, Step]:
    found = {}
    for rank, device in enumerate(members):
        targets = tuple(t for s, t in pairs if s == rank)
        source = next((s for s, t in pairs if t == rank), -1)
        if targets or source >= 0:
            found[device] = dataclasses.replace(step, source=source, targets=targets)
    return found
