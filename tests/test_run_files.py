"""The files of a run: what is read of a process while it ends."""

from __future__ import annotations

import errno
import json
import os
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


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"exit_code": "3"},
        {"exit_code": 1.5},
        {"exit_code": True},
        {"signal": "all"},
        {"signal": [9]},
        {"pid": "1"},
        {"reason": 1},
        {"exit_code": 0, "realtime_ns": 1e9},
    ],
)
def test_an_exit_that_is_none_is_refused(values: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^not how a process ended: "):
        Exit.of_values(values)
    (tmp_path / _run_files.EXIT).write_text(json.dumps(values))
    assert Exit.read(tmp_path) is None


@pytest.mark.parametrize("exit_code", ["x", None, float("inf"), [7]])
def test_an_error_that_is_none_is_refused(exit_code: object, tmp_path: Path) -> None:
    values = {"time": 1.0, "exit_code": exit_code, "summary": "", "traceback": ""}
    with pytest.raises(ValueError, match=r"not the record of an error|invalid literal"):
        ErrorRecord.of_values(values)
    (tmp_path / _run_files.ERROR).write_text(json.dumps(values))
    assert ErrorRecord.read(tmp_path) is None


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for ending in (Exit(5, exit_code=7), Exit.of(-9, 5, _run_files.OUT_OF_MEMORY)):
        ending.write(tmp_path)
        assert Exit.read(tmp_path) == ending
    error = ErrorRecord(1.0, 7, "sys.exit(7)", "SystemExit: 7\n")
    error.write(tmp_path)
    assert ErrorRecord.read(tmp_path) == error


def test_an_end_is_written_in_the_room_that_was_left_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "process_0"
    _run_files.make_folder(folder)
    write = Path.write_bytes

    def full(path: Path, *arguments: Any, **more: Any) -> int:
        if (folder / _run_files.ROOM).exists():
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, *arguments, **more)

    monkeypatch.setattr(Path, "write_bytes", full)
    ErrorRecord(1.0, 1, "ValueError: no data", "").write(folder)
    Exit.of(1).write(folder)
    error, ended = _run_files.read_ending(folder)
    assert error is not None
    assert error.summary == "ValueError: no data"
    assert ended is not None
    assert sorted(path.name for path in folder.iterdir()) == ["error.json", "exit.json"]
