"""The recorder's file: what is written is read, and what is no such file is told plainly."""

from __future__ import annotations

import contextlib
import dataclasses
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import RecordError
from lockstep.flight_recorder import format
from lockstep.flight_recorder.format import Entry, ProcessRecord, Ring, State, encode, parse

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
SLOT = format.RINGS_AT + format.RING_HEADER_BYTES


@st.composite
def entries(draw: st.DrawFn, number: int) -> Entry:
    targets = tuple(draw(st.lists(I32, max_size=format.LISTED_TARGETS)))
    return Entry(
        number,
        draw(U64),
        draw(I64),
        draw(I64),
        draw(U64),
        draw(U64),
        draw(U32),
        draw(st.integers(0, 4)),
        draw(st.integers(0, 12)),
        draw(st.integers(0, 4)),
        draw(st.integers(1, 3)),
        draw(I64),
        draw(I64),
        draw(I64.filter(bool)),  # what has ended has a time
        draw(I32),
        draw(I32),
        len(targets),
        targets,
        draw(U32),
    )


@st.composite
def records(draw: st.DrawFn) -> ProcessRecord:
    def ring(index: int) -> Ring:
        written = draw(st.integers(0, 6))
        return Ring(draw(I32), index, written, tuple(draw(entries(n + 1)) for n in range(written)))

    names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=15)
    return ProcessRecord(
        process=draw(U32),
        num_processes=draw(U32),
        pid=draw(U32),
        host=draw(names),
        label=draw(names.filter(bool)),
        attempt=draw(U32),
        nonce=draw(U64),
        state=draw(st.integers(0, 2)),
        monotonic_ns=draw(I64),
        realtime_ns=draw(I64),
        cliques=tuple(
            draw(st.lists(st.tuples(U64, st.lists(I32, min_size=1, max_size=4).map(tuple))))
        ),
        rings=tuple(ring(i) for i in range(draw(st.integers(0, 2)))),
    )


@settings(deadline=None)
@given(records())
def test_what_is_written_is_read(record: ProcessRecord) -> None:
    assert parse(encode(record, entries=8)) == record


@settings(deadline=None)
@given(st.data(), st.integers(0, 20), st.integers(0, 10))
def test_the_latest_entries_are_those_at_the_end(
    data: st.DataObject, written: int, latest: int
) -> None:
    kept = tuple(data.draw(entries(number + 1)) for number in range(max(0, written - 8), written))
    ring = Ring(5, 0, written, kept)
    buffer = encode(ProcessRecord(0, 1, 1, "h", "process 0", rings=(ring,)), entries=8)
    [found] = parse(buffer, buffer, latest=latest).rings
    assert found == dataclasses.replace(ring, entries=kept[len(kept) - min(latest, len(kept)) :])
    [new] = parse(buffer, buffer, after={5: written - latest}).rings
    assert new == found
    [whole] = parse(buffer, after={4: written}).rings
    assert whole == ring


def record(written: int, **more) -> ProcessRecord:
    made = tuple(
        Entry(n, 5, 9, 1, 4, 16, n - 1, 0, 9, 1, 2, 10 * n, 10 * n + 1, 10 * n + 2)
        for n in range(1, written + 1)
    )
    return ProcessRecord(1, 2, 7, "a", "process 1", rings=(Ring(0, 0, written, made),), **more)


def test_the_layout_is_that_of_the_engine() -> None:
    file = encode(record(3, nonce=11), entries=1024)
    assert len(file) == 4096 + 65536 + 64 + 1024 * 128
    assert struct.unpack_from("<IIIIII", file, 8) == (1, 4096, 128, 1024, 1, 64 + 1024 * 128)
    assert struct.unpack_from("<Q", file, 48) == (11,)
    assert file[80:82] == b"a\0"
    assert file[144:154] == b"process 1\0"
    third = 4096 + 65536 + 64 + 2 * 128
    assert struct.unpack_from("<QQqq", file, third) == (3, 5, 9, 1)
    assert struct.unpack_from("<IBBBB", file, third + 48) == (2, 0, 9, 1, 2)
    assert struct.unpack_from("<qqq", file, third + 56) == (30, 31, 32)


def numbers(file: bytes, again: bytes | None = None) -> list[int]:
    return [entry.number for entry in parse(file, again).rings[0].entries]


def test_a_slot_that_is_being_written_is_left_out() -> None:
    file = bytearray(encode(record(5), entries=8))
    struct.pack_into("<Q", file, SLOT + 4 * 128, 0)  # begun, its number not yet there
    found = parse(bytes(file)).rings[0]
    assert [e.number for e in found.entries] == [1, 2, 3, 4]
    assert found.written == 5


def test_a_slot_that_was_overwritten_between_two_copies_is_left_out() -> None:
    first, second = encode(record(8), entries=8), encode(record(10), entries=8)
    assert numbers(first, second) == [3, 4, 5, 6, 7, 8]


def test_an_entry_that_began_after_the_copy_before_is_left_out() -> None:
    before, file = encode(record(8), entries=8), encode(record(10), entries=8)
    found = parse(file, file, before).rings[0]
    assert [entry.number for entry in found.entries] == [3, 4, 5, 6, 7, 8]
    assert found.written == 10


def test_an_entry_without_the_time_of_its_end_has_not_ended() -> None:
    file = bytearray(encode(record(2), entries=8))
    struct.pack_into("<q", file, SLOT + 128 + 72, 0)  # loaded before the state was
    first, second = parse(bytes(file)).rings[0].entries
    assert (first.state, second.state) == (State.DONE, State.ENTERED)


def test_entries_that_came_while_the_ring_was_copied_count() -> None:
    file = bytearray(encode(record(10), entries=8))
    struct.pack_into("<Q", file, format.RINGS_AT, 8)  # the header was copied two entries ago
    found = parse(bytes(file)).rings[0]
    assert [e.number for e in found.entries] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert found.written == 10


def test_an_entry_that_makes_no_sense_is_left_out() -> None:
    file = bytearray(encode(record(3), entries=8))
    file[SLOT + 128 + 52] = 77  # an operation that there is not
    assert numbers(bytes(file)) == [1, 3]


def test_a_clique_area_that_overflowed_lacks_the_last() -> None:
    file = bytearray(encode(record(0, cliques=((5, (0, 1)), (6, (0, 1, 2)))), entries=8))
    struct.pack_into("<I", file, 76, 8)  # words in use: the second clique is cut
    assert parse(bytes(file)).cliques == ((5, (0, 1)),)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: b"", "no recorder file: it does not begin with LOCKSTEP"),
        (lambda f: b"#!/bin/sh" + f[9:], "no recorder file"),
        (lambda f: f[:100], "truncated: it has 100 bytes, and its header alone has 4096"),
        (lambda f: f[:-1], "truncated.*its header announces"),
        (lambda f: f[:8] + b"\2" + f[9:], "version 2, this Lockstep reads version 1"),
        (lambda f: f[:20] + b"\3" + f[21:], "damaged: the sizes in its header do not fit"),
    ],
)
def test_what_is_no_recorder_file_is_reported(damage, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        parse(damage(encode(record(1), entries=8)))


def test_a_process_without_devices_yet_is_read() -> None:
    young = dataclasses.replace(record(0), rings=())
    assert parse(encode(young)[: format.HEADER_BYTES]) == young


@settings(deadline=None)
@given(st.data())
def test_damage_is_an_error_or_less_history_and_never_a_crash(data: st.DataObject) -> None:
    file = bytearray(encode(record(10), entries=8))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, 255) | st.integers(format.RINGS_AT, len(file) - 1))
        file[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RecordError):
        found = parse(bytes(file)[: data.draw(st.integers(0, len(file)))])
        assert all(e.number > 0 for ring in found.rings for e in ring.entries)
