"""The job that this process is in, and what each module remembers of it.

A process may join several jobs, one after the other: `jax.distributed.shutdown()`, then
`initialize()` again. What one module remembers of a job is a *part*: an object of a class of that
module, which is made at its first use and closed when the job ends. So a second job inherits
nothing from the first.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, TypeVar


class Part:
    """What one module remembers of a job."""

    def close(self) -> None:
        """Ends what runs for the job; called once, when this process leaves it."""


P = TypeVar("P", bound=Part)


_parts: dict[type[Part], Any] = {}
"""Those of the current job, in the order in which they were made."""
_making = threading.RLock()


def part(kind: type[P]) -> P:
    """The current job's only object of the class ``kind``, which is called without arguments."""
    parts = _parts
    # An object that exists takes no lock: a forked child calls this, and it may be held.
    if kind not in parts:
        with _making:
            if kind not in parts:
                parts[kind] = kind()
    return parts[kind]


def end() -> None:
    """Leaves the current job: closes its parts, the latest first. The next one begins without
    any."""
    global _parts
    ended, _parts = _parts, {}
    with contextlib.ExitStack() as closing:
        for each in ended.values():
            closing.callback(each.close)
