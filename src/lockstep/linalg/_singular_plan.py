"""How the singular value or polar decomposition of a sharded matrix is computed."""

from __future__ import annotations

import dataclasses
from typing import Any

from lockstep.linalg import _cpu_kernels, _eigh, _validation
from lockstep.linalg._qr import QRPlan
from lockstep.linalg._validation import Placed

REPLICATED_BELOW = _eigh.REPLICATED_BELOW
"""Up to this smaller dimension every device decomposes the triangle with LAPACK."""

METHODS = ("distributed", "replicated")


def check_method(function: str, method: str | None) -> None:
    if method not in (None, *METHODS):
        raise ValueError(f"{function}: method is {method!r}; expected one of {', '.join(METHODS)}.")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The sharding of a matrix, what of its decomposition is wanted, and how it is computed."""

    placed: Placed
    shape: tuple[int, int]
    tall: QRPlan
    u: bool
    vh: bool
    is_full: bool
    replicated: bool
    kernels: bool

    @classmethod
    def of(
        cls,
        shape: Any,
        placed: Placed,
        u: bool,
        vh: bool,
        is_full: bool,
        tile: int | None = None,
        method: str | None = None,
    ) -> Plan:
        m, n = shape
        turned = dataclasses.replace(placed, dimensions=placed.dimensions[::-1])
        tall = QRPlan.of((n, m), turned, tile) if m < n else QRPlan.of((m, n), placed, tile)
        small = min(m, n) <= REPLICATED_BELOW or placed.sharded.devices == 1
        replicated = small if method is None else method == "replicated"
        kernels = _cpu_kernels.available(_validation.platform(placed))
        return cls(placed, (m, n), tall, u, vh, is_full, replicated, kernels)

    @property
    def is_wide(self) -> bool:
        return self.shape[0] < self.shape[1]

    @property
    def is_direct(self) -> bool:
        """Whether the matrix itself is decomposed, which is square, and not its triangle."""
        return self.shape[0] == self.shape[1] and not self.replicated

    @property
    def is_reduced(self) -> bool:
        """Whether it is reduced to bidiagonal form; else QDWH decomposes it, or LAPACK."""
        return self.kernels and not self.replicated

    @property
    def square(self) -> Placed:
        """The sharding of a matrix with the smaller dimension."""
        return self.tall.result(self.tall.columns, self.tall.columns)

    def result(self, shape: tuple[int, int], turned: bool = False) -> Placed:
        """A sharding of such a matrix as that of ``a`` is or, ``turned``, that of its adjoint."""
        dimensions = self.placed.dimensions[::-1] if turned else self.placed.dimensions
        as_a = dataclasses.replace(self.tall, placed=Placed(self.placed.mesh, dimensions))
        return dataclasses.replace(as_a.result(*shape), inside=self.placed.inside)
