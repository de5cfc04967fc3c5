"""``--nnodes MIN:MAX`` of ``lockstep worker``: with how many nodes a job runs. Pure."""

from __future__ import annotations

from typing import NamedTuple

from lockstep._config import positive
from lockstep._errors import ConfigError


class NodeRange(NamedTuple):
    """The job starts on ``least`` nodes or more, and uses ``most``; others wait as spares."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


def parse(text: str) -> NodeRange:
    """The range in ``MIN:MAX``, or in ``N``. Raises ValueError with what is expected."""
    least, colon, most = text.partition(":")
    try:
        found = NodeRange(positive(least), positive(most if colon else least))
    except ValueError:
        raise ValueError("MIN:MAX or N, whole numbers from 1 on, such as 2:4") from None
    if found.least > found.most:
        raise ValueError(f"a range: MIN, {found.least}, is more than MAX, {found.most}")
    return found


def check(asked: NodeRange | None, size: int, local_size: int, restarts: int, grow: bool) -> None:
    """Raises `ConfigError` for a range that does not fit the job.

    ``size``, ``local_size``: how many processes the launcher starts, and how many on this node.
    """
    if grow and (asked is None or asked.least * local_size == size):
        raise ConfigError(
            "--grow needs --nnodes MIN:MAX, with MIN below MAX: else all nodes are there anyway."
        )
    if asked is None:
        return
    if size % local_size:
        raise ConfigError(
            f"--nnodes {asked}: the launcher's variables say that the job has {size} processes, of "
            f"which {local_size} run on this node: all nodes have to have the same number."
        )
    if asked.most > size // local_size:
        raise ConfigError(
            f"--nnodes {asked}: the launcher's variables say that the job has {size} processes, "
            f"{local_size} on each node, so MAX can be {size // local_size} at most."
        )
    if not restarts:
        raise ConfigError(
            f"--nnodes {asked} needs --max-restarts: a job that loses a node starts again on the "
            "others, and one that is not to start again needs all of its nodes."
        )
