"""Groups of devices where XLA's frames do not show them: known for certain, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import Result, run_lockstep

PROGRAM = Path(__file__).parent / "programs" / "without_frames.py"


def run(what: str, n: int, d: int, seconds: int = 60, **more: int) -> Result:
    return run_lockstep(
        ["--collective-timeout", str(seconds)],
        PROGRAM,
        program_args=[what],
        n=n,
        d=d,
        timeout=120,
        **more,
    )


@pytest.mark.parametrize(("n", "d"), [(1, 4), (2, 1), (2, 2)])
@pytest.mark.parametrize("what", ["all_devices", "all_devices_backwards"])
def test_the_group_of_all_devices(what: str, n: int, d: int) -> None:
    result = run(what, n, d)
    assert result.by_process == {process: ["right"] for process in range(n)}
    said = [line for lines in result.stderr_by_process.values() for line in lines]
    assert len([x for x in said if f"Its {n * d} devices have told each other" in x]) == 1, result
