"""The cases: operations, sizes, and how many bytes each has to move. Pure."""

from __future__ import annotations

import dataclasses
import re

from lockstep._words import UNITS, format_size
from lockstep.inspection import cost_model

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
HLO_NAMES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "permute": "collective-permute",
}
"""The operations as XLA, `lockstep inspect` and ``LOCKSTEP_ALGORITHMS`` name them."""
DTYPES = {
    "f32": ("float32", 4),
    "f64": ("float64", 8),
    "i32": ("int32", 4),
    "bf16": ("bfloat16", 2),
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB)?")
RANGE_STEP = 4
SMALL = 64 << 10
LARGE = 1 << 20
KEPT_FREE = 0.2


def parse_size(text: str) -> int:
    """Bytes named by ``text``: ``"64MiB"``, ``"1.5KiB"``, ``"4096"``. Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * UNITS[match[2] or "B"] if match else 0.0
    if size < 1 or size != int(size):
        raise ValueError(f"{text!r} is not a size: write bytes, or a number and KiB, MiB or GiB")
    return int(size)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes named by ``text``: ``"1KiB:64MiB"`` in steps of 4, or a list ``"1KiB,1MiB"``.

    The last size of a range is always part of it. Raises `ValueError`.
    """
    if ":" not in text:
        return tuple(sorted({parse_size(part) for part in text.split(",")}))
    parts = [parse_size(part) for part in text.split(":")]
    if len(parts) != 2 or parts[0] > parts[1]:
        raise ValueError(f"{text!r} is not a range of sizes: write SMALLEST:LARGEST")
    sizes, size = [], parts[0]
    while size < parts[1]:
        sizes.append(size)
        size *= RANGE_STEP
    return (*sizes, parts[1])


@dataclasses.dataclass(frozen=True)
class Case:
    """One collective on ``elements`` per device (its input), over ``ranks`` devices."""

    op: str
    elements: int
    ranks: int
    dtype: str

    @classmethod
    def of_size(cls, op: str, size: int, ranks: int, dtype: str) -> Case:
        """The case of at least ``size`` input bytes per device.

        Elements are rounded up to a multiple of ``ranks``: a reduce-scatter and an all-to-all hand
        every rank an equal part.
        """
        parts = -(-size // (DTYPES[dtype][1] * ranks))
        return cls(op, parts * ranks, ranks, dtype)

    @property
    def numpy_dtype(self) -> str:
        return DTYPES[self.dtype][0]

    @property
    def bytes(self) -> int:
        """Input bytes per device."""
        return self.elements * DTYPES[self.dtype][1]

    @property
    def result_elements(self) -> int:
        if self.op == "all_gather":
            return self.elements * self.ranks
        if self.op == "reduce_scatter":
            return self.elements // self.ranks
        return self.elements

    @property
    def result_bytes(self) -> int:
        """Result bytes per device."""
        return self.result_elements * DTYPES[self.dtype][1]

    @property
    def bus_bytes(self) -> float:
        """The bytes that bus bandwidth counts, as nccl-tests does (doc/PERFORMANCE.md).

        What each rank has to send (and receive) in the best algorithm over point-to-point links,
        so that the figure compares with the speed of a link whatever the number of ranks.
        """
        return cost_model.bus_bytes(HLO_NAMES[self.op], self.bytes, self.ranks)

    @property
    def least_traffic(self) -> int:
        """Bytes that must cross memory on one host: every input read once, every result written
        once. What passes from rank to rank is taken to stay in the caches."""
        return self.ranks * (self.bytes + self.result_bytes)

    def crossing_bytes(self, hosts: int) -> float:
        """The bytes that a host's link has to carry in one direction, whatever the algorithm.

        Ranks are numbered host by host, equally many on each, and a host sends what its ranks have
        in common once: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009, for
        hosts in place of processes.
        """
        size, share = self.bytes, (hosts - 1) / hosts
        on_host = self.ranks / hosts
        return {
            "all_reduce": 2 * share * size,
            "all_gather": (self.ranks - on_host) * size,
            "reduce_scatter": share * size,
            "all_to_all": on_host * share * size,
            "permute": float(size) if hosts > 1 else 0.0,
        }[self.op]

    def memory_needed(self, implementations: int) -> int:
        """Bytes that measuring this case takes on one host.

        Every implementation's job keeps input and result buffers while its turn comes round; the
        one whose turn it is has a fresh result besides, and may stage as much again.
        """
        kept = self.ranks * (self.bytes + self.result_bytes)
        return implementations * kept + 2 * self.ranks * self.result_bytes


def fits(case: Case, implementations: int, available: int) -> str | None:
    """None when ``case`` fits in ``available`` bytes with room to spare, else why it does not."""
    needed = case.memory_needed(implementations)
    usable = available * (1 - KEPT_FREE)
    if needed <= usable:
        return None
    return f"needs {format_size(needed)}, of which {format_size(usable)} may be used here"


def plan(ops: tuple[str, ...], sizes: tuple[int, ...], ranks: int, dtype: str) -> tuple[Case, ...]:
    """Every case, operation by operation, sizes rising; sizes that round to the same are one."""
    cases = (Case.of_size(op, size, ranks, dtype) for op in ops for size in sizes)
    return tuple(dict.fromkeys(cases))
