"""The line of a cell at which a process is, from its Python stacks. Pure.

It needs no records, so it is also known over gloo and a real MPI.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from lockstep._words import grouped
from lockstep.notebook.fold import label
from lockstep.system import stack_dump

_CELL = re.compile(r"In\[\d+\]$")


def place(stacks: str) -> str:
    """``In[5]:4 in meet, which calls process_allgather (multihost_utils.py:94)``; "": in no cell.

    ``stacks`` is what faulthandler has written of all threads.
    """
    for thread in stacks.split("\n\n"):
        frames = stack_dump.FRAME.findall(thread)
        own = next((frame for frame in frames if _CELL.match(frame[0])), None)
        if own is not None:
            return _described(own, frames[0])
    return ""


def _described(own: tuple[str, str, str], innermost: tuple[str, str, str]) -> str:
    file, line, function = own
    text = f"{file}:{line}" + ("" if function == "<module>" else f" in {function}")
    if innermost == own:
        return text
    file, line, function = innermost
    return f"{text}, which calls {function} ({os.path.basename(file)}:{line})"


def still_running(places: Mapping[int, str]) -> str:
    """``[0,2] still run at In[5]:4; [1] still runs at In[5]:6``: equal places once."""
    groups = grouped((text, process) for process, text in places.items())
    return "; ".join(
        f"{label(group)} still {'runs' if len(group) == 1 else 'run'}{text and f' at {text}'}"
        for text, group in groups.items()
    )
