"""How the monotonic clock of another host differs from this host's."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RemoteClock:
    """How much another host's monotonic clock lags behind this one's, in nanoseconds."""

    least: int
    most: int

    @property
    def shift(self) -> int:
        """To be added to its times."""
        return (self.least + self.most) // 2

    @property
    def error(self) -> int:
        return (self.most - self.least + 1) // 2
