"""Where a process writes down what the other processes of its host may read.

Below the directory of its run. Who was started by neither ``lockstep run`` nor ``lockstep worker``
has none: then it is memory that the others open by way of /proc, and that is gone with the last of
them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

from lockstep import _config
from lockstep._records import process_dir
from lockstep.record import run
from lockstep.runtime import stacks


@dataclasses.dataclass(frozen=True)
class Papers:
    """Paths, for this process and for others of its host; "" for what there is not."""

    record: str = ""
    """The engine's, with all collectives: see `lockstep.record.format`."""
    sites: str = ""
    perhaps: str = ""
    callers: str = ""
    """The lines of the program behind them: see `lockstep.record.run`."""
    stacks: str = ""
    """Its Python stacks, when somebody asks for them."""
    folder: str = ""
    """Where those are, with what its launcher writes there of its end: see `lockstep._records`."""


def own(process: int, record: str) -> Papers:
    """Those of this process, whose engine keeps its record at ``record``."""
    config = _config.current()
    if config.run_dir is None:
        return dataclasses.replace(_in_memory(), record=record)
    folder = process_dir(Path(config.run_dir), config.attempt, process)
    names = (run.SITES, run.PERHAPS, run.CALLERS, stacks.FILE)
    return Papers(record, *(str(folder / name) for name in names), folder=str(folder))


@functools.cache
def _in_memory() -> Papers:
    names = ("sites", "perhaps", "callers", "stacks")
    made = (os.memfd_create(f"lockstep-{name}", os.MFD_CLOEXEC) for name in names)
    papers = Papers("", *(f"/proc/{os.getpid()}/fd/{fd}" for fd in made))
    stacks.install(Path(papers.stacks))
    return papers
