"""The same calls on several processes, over the engine and over gloo."""

from __future__ import annotations

from pathlib import Path

from lanes import sample
from support import run_lockstep

PROGRAM = Path(__file__).parent / "programs" / "solve.py"


@sample(("collectives", "d"), [("lockstep", 1), ("lockstep", 2), ("gloo", 1)], 1)
def test_two_processes(collectives: str, d: int) -> None:
    result = run_lockstep(
        ["--collectives", collectives], PROGRAM, n=2, d=d, timeout=200, forked=True
    )
    for process in range(2):  # gloo speaks on stdout too
        assert result.by_process[process].count("right") == 1, result
