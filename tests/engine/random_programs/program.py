"""Random programs of collectives, as data: what to run, on which devices, in which order.

A program holds one array per device of a mesh and passes it through steps. Everything about it
follows from its seed and the size of the job, so that each process draws the same programs. No JAX
here: `model` says what the steps mean, `worker` runs them.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

AXES = ("a", "b", "c")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
FEW_ELEMENTS, MANY_ELEMENTS = 4096, 1 << 19
_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17)

Shape = tuple[int, ...]
Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation on the array of every device: a collective over mesh axes, or a local one."""

    op: str
    axes: tuple[str, ...] = ()
    params: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        words = [repr(self.axes)] if self.axes else []
        words += [f"{k}={v}" for k, v in self.params.items() if v is not None]
        return f"{self.op}({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Program:
    """`devices` are positions in the job's list of devices; `mesh` is how they are laid out."""

    seed: int
    devices: tuple[int, ...]
    mesh: dict[str, int]
    dtype: str
    shape: Shape
    """What a device holds."""
    flag: int
    steps: tuple[Step, ...]

    def what(self) -> str:
        return f"a device, flag {self.flag}"

    def __str__(self) -> str:
        head = f"program {self.seed}: {self.dtype}{list(self.shape)} {self.what()},"
        where = f"mesh {self.mesh} of devices {list(self.devices)}"
        return "\n".join([f"{head} {where}", *(f"  {i}: {s}" for i, s in enumerate(self.steps))])


def generate(seed: int, devices: int) -> Program:
    """The program with this seed for a job of so many devices."""
    rng = random.Random(f"{seed}/{devices}")
    chosen = draw_devices(rng, devices)
    mesh = draw_mesh(rng, len(chosen))
    dtype = rng.choice(DTYPES)
    if rng.random() < 0.04:
        limit, shape = MANY_ELEMENTS, (rng.randrange(MANY_ELEMENTS // 4, MANY_ELEMENTS // 2),)
    else:
        limit = FEW_ELEMENTS
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.randrange(4)))
    drawer = _Drawer(rng, mesh, dtype, shape, limit)
    for _ in range(rng.randrange(1, 6)):
        drawer.draw()
    return Program(seed, chosen, mesh, dtype, shape, rng.randrange(2), tuple(drawer.steps))


def draw_devices(rng: random.Random, devices: int) -> tuple[int, ...]:
    everyone = list(range(devices))
    kind = rng.random()
    if kind < 0.5:
        return tuple(everyone)
    if kind < 0.7:
        rng.shuffle(everyone)
        return tuple(everyone)
    return tuple(rng.sample(everyone, rng.randrange(1, devices + 1)))


def draw_mesh(rng: random.Random, devices: int) -> dict[str, int]:
    sizes = []
    for _ in range(rng.randrange(3)):
        sizes.append(rng.choice([k for k in range(1, devices + 1) if devices % k == 0]))
        devices //= sizes[-1]
    sizes.append(devices)
    rng.shuffle(sizes)
    return dict(zip(AXES, sizes, strict=False))


class _Drawer:
    """Draws steps one after the other, following the shape that a device holds."""

    def __init__(
        self, rng: random.Random, mesh: dict[str, int], dtype: str, shape: Shape, limit: int
    ) -> None:
        self.rng, self.mesh, self.dtype, self.shape, self.limit = rng, mesh, dtype, shape, limit
        self.steps: list[Step] = []
        self.collectives: list[Callable[[], Step | None]] = [
            self._reduction,
            self._reduction,
            self._all_gather,
            self._psum_scatter,
            self._all_to_all,
            self._ppermute,
            self._ppermute,
            self._loop,
            self._branch,
        ]

    def draw(self) -> None:
        """Adds one collective (with what has to come before it), and mixes the devices again."""
        step = None
        while step is None:
            step = self.rng.choice(self.collectives)()
        self.steps += [step, Step("mix")]

    def _axes(self) -> tuple[str, ...]:
        axes = self.rng.sample(list(self.mesh), self.rng.randrange(1, len(self.mesh) + 1))
        return tuple(axes)

    def _groups(self, axes: tuple[str, ...], equal: bool = True) -> Groups | None:
        """Now and then, a division of one axis into groups."""
        size = math.prod(self.mesh[axis] for axis in axes)
        if len(axes) > 1 or size < 2 or self.rng.random() > 0.3:
            return None
        members = self.rng.sample(range(size), size)
        if not equal and self.rng.random() < 0.5:
            cut = self.rng.randrange(1, size)
            return tuple(members[:cut]), tuple(members[cut:])
        each = self.rng.choice([k for k in range(1, size + 1) if size % k == 0])
        return tuple(tuple(members[i : i + each]) for i in range(0, size, each))

    def _span(self, axes: tuple[str, ...], groups: Groups | None) -> int:
        return len(groups[0]) if groups else math.prod(self.mesh[axis] for axis in axes)

    def _fits(self, shape: Shape) -> bool:
        return math.prod(shape) <= self.limit

    def _reduction(self) -> Step | None:
        ops = ["psum", "pmax", "pmin"]
        ops = ops[1:] if self.dtype == "bool" else ops[:1] if self.dtype in COMPLEX else ops
        op, axes = self.rng.choice(ops), self._axes()
        params: dict[str, Any] = {"groups": self._groups(axes, equal=False)}
        if op == "psum" and self.rng.random() < 0.3:
            params["beside"] = self.rng.choice(("int32", "float32"))
        return Step(op, axes, params)

    def _all_gather(self) -> Step | None:
        axes = self._axes()
        groups = self._groups(axes)
        span, tiled = self._span(axes, groups), bool(self.shape) and self.rng.random() < 0.5
        axis = self.rng.randrange(len(self.shape) + (not tiled))
        shape = list(self.shape)
        if tiled:
            shape[axis] *= span
        else:
            shape.insert(axis, span)
        if not self._fits(tuple(shape)) or shape[axis] == 0:  # XLA gathers no empty axis
            return None
        self.shape = tuple(shape)
        return Step("all_gather", axes, {"axis": axis, "tiled": tiled, "groups": groups})

    def _psum_scatter(self) -> Step | None:
        if self.dtype == "bool":
            return None
        axes = self._axes()
        groups = self._groups(axes)
        span, tiled = self._span(axes, groups), self.rng.random() < 0.6
        axis = self._prepare(span, exact=not tiled)
        if axis is None:
            return None
        shape = list(self.shape)
        if tiled:
            shape[axis] //= span
        else:
            del shape[axis]
        self.shape = tuple(shape)
        return Step("psum_scatter", axes, {"axis": axis, "tiled": tiled, "groups": groups})

    def _all_to_all(self) -> Step | None:
        axes = self._axes()
        groups = self._groups(axes)
        span, tiled = self._span(axes, groups), self.rng.random() < 0.6
        split = self._prepare(span, exact=not tiled)
        if split is None:
            return None
        concat = self.rng.randrange(len(self.shape))
        shape = list(self.shape)
        if tiled:
            shape[split] //= span
            shape[concat] *= span
        else:
            del shape[split]
            shape.insert(concat, span)
        self.shape = tuple(shape)
        params = {"split": split, "concat": concat, "tiled": tiled, "groups": groups}
        return Step("all_to_all", axes, params)

    def _prepare(self, span: int, exact: bool) -> int | None:
        """An axis whose size is a multiple of `span`, or `exact`ly that; made when there is none.

        Never an empty axis: XLA refuses to divide it.
        """
        fitting = [
            i for i, n in enumerate(self.shape) if n and (n == span if exact else n % span == 0)
        ]
        if fitting and self.rng.random() < 0.8:
            return self.rng.choice(fitting)
        axis = self.rng.randrange(len(self.shape) + 1)
        shape = (*self.shape[:axis], span, *self.shape[axis:])
        if not self._fits(shape):
            return None
        self.shape = shape
        self.steps += [Step("stack", (), {"axis": axis, "count": span})]
        return axis

    def _ppermute(self) -> Step | None:
        # jax's ppermute numbers the members in the order of the mesh, whatever order is asked for.
        axes = tuple(sorted(self._axes()))
        size = math.prod(self.mesh[axis] for axis in axes)
        pairs = list(
            zip(self.rng.sample(range(size), size), self.rng.sample(range(size), size), strict=True)
        )
        kept = pairs if self.rng.random() < 0.5 else pairs[: self.rng.randrange(size + 1)]
        return Step("ppermute", axes, {"pairs": tuple(kept)})

    def _steady(self) -> Step:
        """A collective that leaves the shape alone."""
        step = self.rng.choice((self._reduction, self._ppermute))()
        assert step is not None
        step.params.pop("beside", None)
        return step

    def _loop(self) -> Step | None:
        return Step("loop", (), {"count": self.rng.randrange(4), "body": self._steady()})

    def _branch(self) -> Step | None:
        return Step("branch", (), {"if_0": self._steady(), "if_1": self._steady()})
