"""Cutting and merging lines: pure functions of bytes."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.processes.line_merge import MAX_LINE, LineCutter, Merger, Sink, prefix

A, B = b"[0] ", b"[1] "


def test_whole_lines_are_given_out_and_the_rest_is_kept() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"one\ntw") == b"one\n"
    assert cutter.unfinished
    assert cutter.feed(b"o\nthree\n") == b"two\nthree\n"
    assert not cutter.unfinished


def test_a_line_without_end_is_given_out_in_pieces() -> None:
    cutter = LineCutter()
    shown = b"".join(cutter.feed(b"x" * 1000) for _ in range(1000))
    assert len(shown) > 1_000_000 - MAX_LINE - 1000
    assert len(shown + cutter.take()) == 1_000_000


@given(st.lists(st.binary(max_size=50)))
def test_no_byte_is_lost_or_added(pieces: list[bytes]) -> None:
    cutter = LineCutter()
    shown = b"".join(cutter.feed(piece) for piece in pieces)
    assert shown == b"" or shown.endswith(b"\n")
    assert shown + cutter.take() == b"".join(pieces)


def test_every_line_gets_its_prefix() -> None:
    merger = Merger()
    assert merger.put("a", A, b"one\n\ntwo\n") == b"[0] one\n[0] \n[0] two\n"
    assert merger.put("b", B, b"three\n") == b"[1] three\n"


def test_an_unfinished_line_goes_on_when_no_other_process_wrote() -> None:
    merger = Merger()
    assert merger.put("a", A, b"name? ") == b"[0] name? "
    assert merger.put("a", A, b"Ada\n") == b"Ada\n"
    assert merger.put("a", A, b"next\n") == b"[0] next\n"


def test_an_unfinished_line_is_ended_when_another_process_writes() -> None:
    merger = Merger()
    merger.put("a", A, b"half")
    assert merger.put("b", B, b"whole\n") == b"\n[1] whole\n"
    assert merger.put("a", A, b"other half\n") == b"[0] other half\n"


def test_a_progress_bar_keeps_its_prefix_on_every_redraw() -> None:
    merger = Merger()
    assert merger.put("a", A, b"\r10%\r20%") == b"[0] \r[0] 10%\r[0] 20%"
    assert merger.put("a", A, b"\r\n") == b"\r\n"


def test_windows_line_ends_are_one_line_end() -> None:
    assert Merger().put("a", A, b"one\r\ntwo\r\n") == b"[0] one\r\n[0] two\r\n"


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.binary(min_size=1, max_size=40))))
def test_without_prefixes_every_byte_arrives(pieces: list[tuple[bytes, bytes]]) -> None:
    merger = Merger()
    for source, piece in pieces:
        out = merger.put(source, b"", piece)
        assert out.removeprefix(b"\n" if out != piece else b"") == piece


def test_numbers_are_aligned() -> None:
    assert prefix(3, ["a"] * 12, colour=False) == b"[ 3] "
    assert prefix(11, ["a"] * 12, colour=False) == b"[11] "
    assert prefix(0, ["a"], colour=False) == b"[0] "


def test_hosts_are_aligned_too() -> None:
    hosts = ["a"] * 9 + ["node10", "b"]
    assert prefix(3, hosts, colour=False) == b"[ 3@a]      "
    assert prefix(9, hosts, colour=False) == b"[ 9@node10] "
    assert prefix(10, hosts, colour=True).endswith(b"[10@b]     \x1b[0m ")


def test_colour_ends_before_the_line_begins() -> None:
    assert prefix(0, ["a", "a"], colour=True).endswith(b"[0]\x1b[0m ")


def test_a_sink_whose_reader_is_gone_drops_what_it_gets() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    sink = Sink(writer)
    sink.put(b"x")
    sink.write_some()
    assert sink.broken
    assert isinstance(sink.error, BrokenPipeError)
    sink.put(b"more")
    assert sink.backlog == 0
    os.close(writer)


@pytest.mark.parametrize("size", [1, 4096, 100_000])
def test_a_sink_writes_everything_in_order(size: int, tmp_path: object) -> None:
    data = os.urandom(size)
    file = os.open(f"{tmp_path}/out", os.O_RDWR | os.O_CREAT)
    sink = Sink(file)
    sink.put(data)
    while sink.backlog:
        sink.write_some()
    assert os.pread(file, size + 1, 0) == data
    os.close(file)
