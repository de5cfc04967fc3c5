"""The cost of the engine's algorithms between hosts, by latency and bandwidth. Pure.

An algorithm is a number of rounds; in a round a host sends some messages and receives as many. It
takes

    rounds * latency + (messages - rounds) * overhead + bytes * per_byte + added * per_byte_added

with what the host does that is busiest in each round: the model of R. Hockney (The communication
challenge for MPP, 1994) with the overhead of LogGP (A. Alexandrov et al., 1995), as R. Thakur, R.
Rabenseifner and W. Gropp use it (Optimization of collective communication operations in MPICH,
2005). Names and choice are those of native/collectives/collectives.cc;
`tests/inspection/test_schedules.py` compares the counts with the messages of each schedule.

A host's processes and devices add up, and hand on, in its shared memory: `Host`. So what crosses
does not depend on their number, except where every rank has data of its own (gathers, all-to-alls).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SMALL_BYTES = 32 << 10
"""kSmallBetweenHosts."""
MAX_DIRECT_HOSTS = 16
"""kMaxDirectHosts."""
MIN_RING_SLICE = 16 << 10
"""kMinRingSlice."""


@dataclass(frozen=True)
class Counts:
    """What the busiest host does in each round, summed over the rounds."""

    rounds: int
    messages: int
    """That it sends."""
    bytes: float
    """That it sends or receives, whichever are more."""
    added: float = 0.0
    """Bytes that it adds to others."""


@dataclass(frozen=True)
class Link:
    """The network of a host."""

    latency: float
    """Seconds of a message without bytes, from one program to the other."""
    per_byte: float
    """Seconds of a byte: the slower of the line and what a host's cores can encrypt and copy."""
    overhead: float = 0.0
    """Seconds of each further message that a host sends at the same time."""
    per_byte_added: float = 0.0

    def seconds(self, counts: Counts) -> float:
        return (
            counts.rounds * self.latency
            + (counts.messages - counts.rounds) * self.overhead
            + counts.bytes * self.per_byte
            + counts.added * self.per_byte_added
        )


@dataclass(frozen=True)
class Host:
    """The processes of a host, in its shared memory."""

    processes: int = 1
    latency: float = 0.0
    """Seconds until all have seen a message of one."""
    per_byte: float = 0.0
    """Seconds in which a byte of each is added up, or handed on."""

    def seconds(self, size: float) -> float:
        """The time to add up ``size`` bytes before they cross, and to hand the result on."""
        return 2 * (self.latency + size * self.per_byte) if self.processes > 1 else 0.0


def log2_down(hosts: int) -> int:
    return hosts.bit_length() - 1


def log2_up(hosts: int) -> int:
    return (hosts - 1).bit_length()


def _is_power(hosts: int) -> bool:
    return hosts & (hosts - 1) == 0


def recursive_doubling(hosts: int, size: float) -> Counts:
    """An all-reduce: in each round a host exchanges all bytes, with one twice as far as before.

    If the number of hosts is no power of two, pairs of neighbours become one host first, and one of
    each hands the result on in the end.
    """
    rounds, fold = log2_down(hosts), int(not _is_power(hosts))
    return Counts(
        rounds + 2 * fold, rounds + 2 * fold, (rounds + 2 * fold) * size, (rounds + fold) * size
    )


def halving_doubling(hosts: int, size: float) -> Counts:
    """An all-reduce for powers of two: R. Rabenseifner, Optimization of collective reduction
    operations, 2004. Halves of halves are added up, and gathered the same way back."""
    share = (hosts - 1) / hosts
    return Counts(2 * log2_down(hosts), 2 * log2_down(hosts), 2 * share * size, share * size)


def direct(hosts: int, size: float) -> Counts:
    """An all-reduce: each host adds up one slice, which all others send it at once."""
    share = (hosts - 1) / hosts
    return Counts(2, 2 * (hosts - 1), 2 * share * size, share * size)


def ring(hosts: int, size: float) -> Counts:
    """An all-reduce: slices go around, once to be added up and once to be handed on."""
    share = (hosts - 1) / hosts
    return Counts(2 * (hosts - 1), 2 * (hosts - 1), 2 * share * size, share * size)


def bruck_all_gather(hosts: int, size: float) -> Counts:
    """``size`` bytes of each host. The blocks that a host has double in a round: J. Bruck et al.,
    Efficient algorithms for all-to-all communications in multiport message-passing systems,
    1997."""
    return Counts(log2_up(hosts), log2_up(hosts), (hosts - 1) * size)


def pairwise(hosts: int, size: float) -> Counts:
    """``size`` bytes of each host to each other one, at once: an all-gather, or an all-to-all."""
    return Counts(1, hosts - 1, (hosts - 1) * size)


def pairwise_reduce_scatter(hosts: int, size: float) -> Counts:
    """Each host sends each other one its part of ``size`` bytes, at once."""
    share = (hosts - 1) / hosts
    return Counts(1, hosts - 1, share * size, share * size)


def bruck_all_to_all(hosts: int, size: float) -> Counts:
    """``size`` bytes from each host to each. A block moves by the powers of two in the distance
    that it has to go, together with all others that move so far (Bruck et al., 1997)."""
    moves = sum(index.bit_count() for index in range(hosts))
    return Counts(log2_up(hosts), log2_up(hosts), moves * size)


ALGORITHMS: dict[tuple[str, str], Callable[[int, float], Counts]] = {
    ("all-reduce", "recursive-doubling"): recursive_doubling,
    ("all-reduce", "halving-doubling"): halving_doubling,
    ("all-reduce", "direct"): direct,
    ("all-reduce", "ring"): ring,
    ("all-gather", "bruck"): bruck_all_gather,
    ("all-gather", "pairwise"): pairwise,
    ("reduce-scatter", "recursive-doubling"): recursive_doubling,
    ("reduce-scatter", "pairwise"): pairwise_reduce_scatter,
    ("all-to-all", "bruck"): bruck_all_to_all,
    ("all-to-all", "pairwise"): pairwise,
    ("collective-permute", "pairwise"): lambda hosts, size: Counts(1, 1, size),
}
"""(operation, name) -> counts from the number of hosts and the bytes named in its description."""
SMALL_ONLY = (
    ("all-gather", "bruck"),
    ("reduce-scatter", "recursive-doubling"),
    ("all-to-all", "bruck"),
)
"""Algorithms whose buffers have room for `SMALL_BYTES`."""


def _is_small(op: str, hosts: int, size: float) -> bool:
    return (size * hosts if op == "all-gather" else size) <= SMALL_BYTES


def possible(op: str, hosts: int, size: float = 0.0) -> list[str]:
    """The algorithms for that many hosts, each of which puts in ``size`` bytes."""
    return [
        name
        for known, name in ALGORITHMS
        if known == op
        and (name != "halving-doubling" or _is_power(hosts))
        and ((op, name) not in SMALL_ONLY or _is_small(op, hosts, size))
    ]


def choose(op: str, hosts: int, size: float) -> str:
    """The algorithm that the engine takes, for one process a host. ``size`` is what each host puts
    in: of an all-to-all, all blocks together."""
    if op == "all-reduce":
        if size <= SMALL_BYTES or hosts == 2:
            return "recursive-doubling"
        if _is_power(hosts):
            return "halving-doubling"
        if hosts <= MAX_DIRECT_HOSTS:
            return "direct"
        return "ring" if size >= MIN_RING_SLICE * hosts else "recursive-doubling"
    if op == "collective-permute":
        return "pairwise"
    small = "recursive-doubling" if op == "reduce-scatter" else "bruck"
    return small if _is_small(op, hosts, size) else "pairwise"


def counts(op: str, hosts: int, size: float, algorithm: str | None = None) -> Counts:
    """Rounds, messages and bytes of one collective into which each host puts ``size`` bytes.

    Args:
      algorithm: default: the one that the engine chooses.
    """
    name = algorithm or choose(op, hosts, size)
    block = size / hosts if op == "all-to-all" else size
    return ALGORITHMS[op, name](hosts, block)


def rounds(op: str, hosts: int) -> int:
    """How often the smallest collective waits for a message."""
    return counts(op, max(2, hosts), 0.0).rounds


def best(op: str, hosts: int, size: float, link: Link) -> tuple[str, float]:
    """The algorithm that takes least by this model, and its seconds."""
    times = {
        name: link.seconds(counts(op, hosts, size, name)) for name in possible(op, hosts, size)
    }
    name = min(times, key=times.__getitem__)
    return name, times[name]


def fit(points: Sequence[tuple[Counts, float]]) -> Link:
    """The link whose seconds differ least from measured ones, in relative terms."""
    import numpy as np
    from scipy.optimize import nnls

    rows = [
        [c.rounds / s, (c.messages - c.rounds) / s, c.bytes / s, c.added / s] for c, s in points
    ]
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(np.array(rows) / scale, np.ones(len(rows)))
    latency, overhead, per_byte, added = (float(each) for each in found / scale)
    return Link(latency, per_byte, overhead, added)


def error(link: Link, counts: Counts, seconds: float) -> float:
    """The factor, 1 or more, by which the model is off for a measured time."""
    ratio = link.seconds(counts) / seconds
    return max(ratio, 1 / ratio)
