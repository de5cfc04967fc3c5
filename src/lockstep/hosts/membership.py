"""Which hosts of a job run its processes, which wait as spares, and which are lost. Pure.

A job has as many seats as it has hosts at the start. A seat has processes, the same ones in every
attempt in which all seats are taken, so that the data and the shards of a process stay where they
were. A spare that takes the seat of a lost host gets its processes. While a seat is empty, the
processes of the others are numbered anew, because JAX numbers processes without gaps.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Sequence

from lockstep.hosts.host_list import Host, Placed

MAX_LOSSES = 3
"""A host that was lost so often does not take part any more."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A host that takes a seat."""

    host: Host
    gone: Host
    """The last host of this seat; the same one where it has come back."""


class Membership:
    """The hosts of one job. A host is in one of four states: in use, spare, lost or left out."""

    def __init__(
        self, placed: Sequence[Placed], spares: Sequence[Host] = (), max_losses: int = MAX_LOSSES
    ) -> None:
        """``placed``: the hosts with their processes, as for the first attempt; ``max_losses``: 0
        leaves no host out."""
        self._seats = tuple(placed)
        self._in_use: list[Host | None] = [each.host for each in placed]
        self._last = [each.host for each in placed]
        """The last host of each seat."""
        self._order = [*self._last, *spares]
        self._spares = list(spares)
        self._max_losses = max_losses
        self._losses: collections.Counter[Host] = collections.Counter()

    @property
    def hosts(self) -> list[Host]:
        """All of them, in the user's order."""
        return list(self._order)

    @property
    def seats(self) -> int:
        return len(self._seats)

    @property
    def in_use(self) -> list[Host]:
        """The hosts that have a seat, in the order of the seats."""
        return [host for host in self._in_use if host]

    @property
    def spares(self) -> list[Host]:
        """The hosts that can take a seat, in the user's order."""
        return sorted(self._spares, key=self._order.index)

    @property
    def lost(self) -> list[Host]:
        """The lost hosts that may return."""
        gone = [each for each in self._order if each not in self._in_use + self._spares]
        return [each for each in gone if not self.is_left_out(each)]

    @property
    def absent(self) -> list[Host]:
        """The last hosts of the empty seats."""
        return [self._last[seat] for seat in self._empty()]

    def losses(self, host: Host) -> int:
        return self._losses[host]

    def is_left_out(self, host: Host) -> bool:
        """Whether it was lost too often to take part again."""
        return 0 < self._max_losses <= self._losses[host]

    # Events

    def lose(self, host: Host) -> None:
        """Takes note that a host is lost; nothing where that is known."""
        if host not in self._in_use + self._spares:
            return
        self._losses[host] += 1
        self._spares = [each for each in self._spares if each != host]
        self._in_use = [None if each == host else each for each in self._in_use]

    def forgive(self) -> None:
        """Forgets all losses so far, as far as they count against a host."""
        self._losses.clear()

    def returned(self, host: Host) -> None:
        """A lost host answers again: it is a spare from now on."""
        if host in self.lost:
            self._spares.append(host)

    # Plans

    def can_grow(self) -> bool:
        """Whether a spare could take an empty seat."""
        return any(self._fitting(seat) for seat in self._empty())

    def planned(self) -> Membership:
        """What `plan` would make of this one, which stays as it is."""
        other = copy.deepcopy(self)
        other.plan()
        return other

    def is_full(self) -> bool:
        """Whether each seat has its host."""
        return not self._empty()

    def plan(self) -> list[Change]:
        """Gives each empty seat a spare, as far as there are any.

        A host gets its own last seat before another; else spares serve in the user's order. A spare
        takes only a seat whose processes it has slots for.
        """
        changes = []
        own = [seat for seat in self._empty() if self._last[seat] in self._spares]
        for seat in [*own, *(each for each in self._empty() if each not in own)]:
            fitting = self._fitting(seat)
            if not fitting:
                continue
            host = self._last[seat] if seat in own else fitting[0]
            changes.append(Change(host, self._last[seat]))
            self._spares.remove(host)
            self._in_use[seat] = self._last[seat] = host
        return changes

    @property
    def places(self) -> list[Placed]:
        """The hosts in use with their processes, which are those of the first attempt where no seat
        is empty."""
        found, first = [], 0
        for host, seat in zip(self._in_use, self._seats, strict=True):
            if host:
                found.append(Placed(host, first, seat.count))
                first += seat.count
        return found

    def _empty(self) -> list[int]:
        return [seat for seat, host in enumerate(self._in_use) if host is None]

    def _fitting(self, seat: int) -> list[Host]:
        return [each for each in self.spares if each.slots >= self._seats[seat].count]
