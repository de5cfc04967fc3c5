"""What watchdogs write to each other is read as it was meant, and what is damaged is told."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_recorder.simulate import site
from flight_recorder.test_format import entries, record, records
from lockstep import RecordError
from lockstep._run_files import Exit
from lockstep.flight_recorder.format import Ring
from lockstep.flight_recorder.run_records import Caller, Process, Site
from lockstep.flight_recorder.waits import Barrier, Waits
from lockstep.system.remote_clock import RemoteClock
from lockstep.watchdog import messages

CALLERS = {7: (Caller("a.py", 3, "step", "5-15"), Caller("b.py", 9, "main"))}
SITES = (
    site(1000, line=41, name="step"),
    site(2000, 3),
    site(3000, file="", line=0, used_file="/home/u/train.py", used_line=7),
)

WAITS = Waits((Barrier("barrier/x", 2, "barrier('x')", "a.py", 3),), {"barrier/x": 2}, (7, 1))

FIELDS = [field.name for field in dataclasses.fields(Site)]


def through(processes: list[Process]) -> list[Process]:
    told, body = messages.pack_processes(processes)
    head, arrived = messages.unpack(messages.pack({"processes": told}, body))
    return messages.unpack_processes(head["processes"], arrived)


@settings(deadline=None)
@given(st.lists(records(), max_size=3))
def test_what_is_sent_is_read(told: list) -> None:
    processes = [
        Process(index, one, SITES, callers=CALLERS, problems=("it is old",), waits=WAITS)
        for index, one in enumerate(told)
    ]
    processes.append(Process(98, exit=Exit(12, None, 9, 10**18, "out of memory")))
    processes.append(Process(99))
    assert through(processes) == processes


@settings(deadline=None)
@given(st.data(), st.sets(st.integers(0, 40), min_size=1))
def test_rings_with_entries_missing_are_read(data: st.DataObject, lacking: set[int]) -> None:
    there = tuple(data.draw(entries(n)) for n in range(60, 101) if n - 60 not in lacking)
    ring = Ring(5, 0, 100, there)
    of = dataclasses.replace(record(0), rings=(ring,))
    assert through([Process(1, of)]) == [Process(1, of)]


def test_a_body_may_hold_any_bytes() -> None:
    assert messages.unpack(messages.pack({"kind": "x"}, b"\0a\0")) == ({"kind": "x"}, b"\0a\0")


@pytest.mark.parametrize("note", [b"", b"\0", b"[]\0", b"{\0", b"\xff\0"])
def test_what_is_no_note_is_an_error(note: bytes) -> None:
    with pytest.raises(ValueError):
        messages.unpack(note)


def test_records_that_are_cut_short_are_an_error() -> None:
    told, body = messages.pack_processes([Process(0, record(3))])
    with pytest.raises(ValueError, match="cut short"):
        messages.unpack_processes(told, body[:-9])
    with pytest.raises(RecordError):
        messages.unpack_processes([{**told[0], "bytes": 100}], body)


@pytest.mark.parametrize("field", range(len(FIELDS)))
def test_sites_of_other_types_are_an_error_or_made_right(field: int) -> None:
    told, body = messages.pack_processes([Process(0, sites=SITES[:1])])
    told[0]["sites"][0][field] = ["no such thing"]
    with contextlib.suppress(ValueError, TypeError):
        [found] = messages.unpack_processes(told, body)
        made = getattr(found.sites[0], FIELDS[field])
        assert isinstance(made, str) or made == ("no such thing",)


def test_a_clock_lies_between_what_was_seen() -> None:
    # Asked at 100 and heard at 140 here; there it was 5010 and 5020: it is 4890 to 4900 ahead.
    clock = RemoteClock(100 - 5010, 140 - 5020)
    assert clock.least <= clock.shift <= clock.most
    assert clock.shift == pytest.approx(-4895, abs=15)
    assert clock.error == 15
