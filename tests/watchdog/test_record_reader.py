"""The lines of this process's collectives, as the watchdog finds them and writes them down."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, cast

import pytest

from callsites.test_hlo_metadata import RESHARDED, Executable, number
from lockstep import _jax_compat
from lockstep.callsites import frames
from lockstep.callsites.hlo_metadata import parse
from lockstep.flight_recorder.format import Op
from lockstep.flight_recorder.run_records import Caller, Site, read_sites
from lockstep.watchdog.artifacts import Artifacts
from lockstep.watchdog.record_reader import SiteWriter

DEVICES = (0, 2048)
COMPUTED, ARGUMENT = 1, 2
"""Channels of `RESHARDED`: what is moved has a line, or is an argument."""


class Process:
    """One whose program has run, and its artifacts."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.line: Caller | None = None
        patch.setattr(_jax_compat, "device_lists", lambda: {DEVICES})
        patch.setattr(frames, "innermost", lambda: self.line)
        self.artifacts = Artifacts(
            sites=str(folder / "sites"), possible_sites=str(folder / "possible")
        )
        self.entries: list[Any] = []
        ring = types.SimpleNamespace(device=0, written=0, entries=self.entries)
        record = types.SimpleNamespace(rings=[ring])
        records = types.SimpleNamespace(own=0, record=lambda own, after: record)
        self.sites = SiteWriter(cast(Any, records), self.artifacts, list)

    def compile(self, line: int | None) -> None:
        self.line = None if line is None else Caller("/home/u/main.py", line, "main")
        self.sites.hold(Executable(b"1", RESHARDED))

    def run(self) -> None:
        execution = number(parse(b"1", RESHARDED), *DEVICES)
        gather = types.SimpleNamespace(run_id=execution, op=Op.ALL_GATHER, op_id=ARGUMENT)
        self.entries.append(gather)
        self.sites.update()

    def told(self, channel: int) -> list[tuple[str, int, str, int]]:
        """What others read, which is what it knows itself."""
        read, _ = read_sites(self.artifacts.sites)
        assert list(read) == self.sites.found
        return [_places(site) for site in read if site.channel == channel]


def _places(site: Site) -> tuple[str, int, str, int]:
    return (site.file, site.line, site.used_file, site.used_line)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(tmp_path, monkeypatch)


def test_what_has_no_line_has_that_of_its_programs_first_use(process: Process) -> None:
    process.compile(7)
    process.run()
    assert process.told(COMPUTED) == [("/home/u/train.py", 41, "", 0)]
    assert process.told(ARGUMENT) == [("", 0, "/home/u/main.py", 7)]


def test_of_two_first_uses_both_are_reported_whenever_they_come(process: Process) -> None:
    process.compile(7)
    process.compile(8)
    process.run()
    process.compile(9)
    for _ in range(2):
        process.sites.update()
        assert [used for *_, used in process.told(ARGUMENT)] == [7, 8, 9]
        assert len(process.told(COMPUTED)) == 1


def test_a_program_that_was_made_on_a_thread_without_lines_has_none(process: Process) -> None:
    process.compile(None)
    process.run()
    process.compile(9)
    process.sites.update()
    assert process.told(ARGUMENT) == [("", 0, "", 0)]
