"""The files of a run: what is read of a process while it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import _run_files
from lockstep._run_files import ErrorRecord, Exit


@pytest.mark.parametrize("moment", range(3))
def test_an_exit_is_never_read_without_the_error_before_it(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process writes its error and then ends, before, between or after the two reads."""
    reads = 0

    def end_at(now: int) -> None:
        if now == moment:
            ErrorRecord(1.0, 7, "sys.exit(7)", "SystemExit: 7\n").write(tmp_path)
            Exit(5, exit_code=7).write(tmp_path)

    def counted(read: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            nonlocal reads
            end_at(reads)
            reads += 1
            return read(*arguments)

        return wrapped

    for kind in (ErrorRecord, Exit):
        monkeypatch.setattr(kind, "read", counted(kind.read))
    error, ending = _run_files.read_ending(tmp_path, 5)
    assert reads == 2
    assert error is not None or ending is None
    assert (ending is not None) == (moment == 0)
    assert (error is not None) == (moment <= 1)
