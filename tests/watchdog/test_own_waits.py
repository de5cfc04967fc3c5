"""What a process publishes of an exception of a callback, and when it no longer does."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.flight_recorder.waits import read_waits
from lockstep.watchdog import own_waits


@pytest.fixture
def published(tmp_path: Path) -> tuple[own_waits.OwnWaits, Path]:
    waits, path = own_waits.OwnWaits(), tmp_path / "waits.json"
    waits.keep_in(str(path))
    try:
        raise ValueError("disk full")
    except ValueError as error:
        waits.note_callback(error)
    return waits, path


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = own_waits.time.monotonic() + seconds
    monkeypatch.setattr(own_waits.time, "monotonic", lambda: now)


def test_a_callback_is_the_reason_while_the_process_stands_still(
    published: tuple[own_waits.OwnWaits, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, path = published
    waits.note_rest((7, 1), False)
    waits.note_rest((8, 2), False)  # its other devices have come to the next collective
    later(monkeypatch, 60)
    waits.note_rest((8, 2), False)
    assert read_waits(path).callback.startswith("ValueError: disk full, test_own_waits.py:")


def test_a_callback_is_forgotten_when_the_program_has_caught_it(
    published: tuple[own_waits.OwnWaits, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, path = published
    waits.note_rest((7, 1), False)
    later(monkeypatch, 60)
    waits.note_rest((900, 1), False)
    assert read_waits(path).callback == ""
