"""What `lockstep.inspect` found, as plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.inspection.causes import Cause
from lockstep.inspection.mesh_axes import Axes, MeshShape

if TYPE_CHECKING:
    from lockstep.inspection.cost_model import CostModel


class Reach(enum.StrEnum):
    """How far the data of a collective travel, at most."""

    PROCESS = "within a process"
    HOST = "within a host"
    HOSTS = "between hosts"


@dataclass(frozen=True)
class ArrayInfo:
    """An argument or a result of the program."""

    name: str
    """``x``, ``params['w']``; of a result its place in the results, ``[0]``."""
    dtype: str
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    """The shape of the part on one device."""
    spec: str
    """``P('x', None)``; "not used" for an argument that the compiler dropped."""
    bytes: int
    """On one device."""
    copies: int = 1
    """How many devices hold each element."""
    donated: bool = False


@dataclass(frozen=True)
class Loop:
    """A loop around a collective."""

    trips: int | None
    """How often its body runs; None: XLA does not know."""
    file: str
    line: int
    """A line of the user's program; file "" and line 0: not known."""


@dataclass(frozen=True)
class Collective:
    """One collective that the compiled program runs."""

    op: str
    """``all-reduce``, as HLO names it."""
    reduction: str
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    """(dtype, shape) of each array that one device puts in: several where XLA has combined
    collectives, and a piece for each device in an all-to-all."""
    bytes: int
    """What one device puts in, each time that it runs."""
    result_bytes: int
    """What one device gets, each time."""
    executions: int | None
    """How often it runs in one execution of the program; None: not known."""
    loops: tuple[Loop, ...]
    """Around it, from the outermost."""
    conditional: bool
    """Whether it stands in a branch of a `lax.cond`."""
    axes: Axes
    groups: tuple[tuple[int, ...], ...]
    """The devices that take part together, as positions in the program's list of devices."""
    pairs: tuple[tuple[int, int], ...]
    """The (source, target) pairs of a permute. A device that sends to itself only is in none."""
    reach: Reach
    file: str
    line: int
    function: str
    """The innermost line of the program, and its function; "" and 0: not known."""
    op_name: str
    """JAX's path of the operation."""
    cause: Cause
    invariant: bool = False
    """Whether it moves the same data in every iteration of its loop."""
    only_sliced: bool = False
    """Whether the program uses nothing but slices of its result."""
    carried: bool = False
    """Whether its result goes into the next iteration of its loop, and nothing else uses it."""
    seconds: float | None = None
    """Predicted for one run of it; None without a cost model."""

    @property
    def trips(self) -> tuple[int | None, ...]:
        """How often each loop around it runs, from the outermost; None: not known."""
        return tuple(loop.trips for loop in self.loops)

    @property
    def dtype(self) -> str:
        """The type of the operands as HLO names it, ``f32``; several with commas."""
        return ",".join(dict.fromkeys(dtype for dtype, _ in self.operands))

    @property
    def group_size(self) -> int:
        return max((len(group) for group in self.groups), default=2)

    @property
    def total_bytes(self) -> int:
        """What one device puts in, in one execution of the program; a loop of unknown length
        counts once."""
        known = 1
        for trips in self.trips:
            known *= trips or 1
        return self.bytes * known


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by XLA's account."""

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    """The part of the outputs that lies in donated arguments."""

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries - self.aliased


@dataclass(frozen=True)
class Placement:
    """Where the program's devices are."""

    devices: tuple[int, ...]
    """The ids of the devices, in the program's order."""
    processes: tuple[int, ...]
    """The process of each of them."""
    processes_per_host: int

    def reach(self, members: Any) -> Reach:
        processes = {self.processes[device] for device in members}
        if len(processes) <= 1:
            return Reach.PROCESS
        hosts = {process // self.processes_per_host for process in processes}
        return Reach.HOST if len(hosts) == 1 else Reach.HOSTS

    @property
    def counts(self) -> tuple[int, int, int]:
        """(devices, processes, hosts)."""
        processes = set(self.processes)
        hosts = {process // self.processes_per_host for process in processes}
        return len(self.processes), len(processes), len(hosts)


@dataclass(frozen=True)
class Facts:
    """What the compiler made of a function."""

    name: str
    meshes: tuple[MeshShape, ...]
    placement: Placement
    inputs: tuple[ArrayInfo, ...]
    outputs: tuple[ArrayInfo, ...]
    collectives: tuple[Collective, ...]
    memory: Memory | None
    """None where XLA gives no account."""
    flops: float | None
    """Operations of one device in one execution. XLA counts the body of a loop once."""
    product_flops: float = 0.0
    """Operations in matrix products and convolutions, in loops as often as they run; once where
    XLA does not know how often."""
    warnings: tuple[str, ...] = ()
    """What XLA's partitioner complained about: "full rematerialization"."""
    advice: tuple[str, ...] = ()
    model: CostModel | None = None
    """What the predicted times come from."""

    @property
    def seconds(self) -> float | None:
        """Predicted time of all collectives in one execution; None without a cost model.

        One after the other: what overlaps with computation is not taken off. A loop of unknown
        length counts once.
        """
        times = [each.seconds for each in self.collectives]
        if self.model is None or any(seconds is None for seconds in times):
            return None
        runs = [each.total_bytes // each.bytes if each.bytes else 1 for each in self.collectives]
        return sum((s or 0.0) * n for s, n in zip(times, runs, strict=True))
