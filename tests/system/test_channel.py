"""Messages between processes: whole, in pieces, and bad ones."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.system.channel import (
    GREETING,
    MAX_BODY,
    MAX_HEAD,
    TRUSTED,
    Channel,
    ChannelError,
    Decoder,
    encode,
)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50), st.binary(max_size=30))
def test_any_pieces_make_the_same_messages(bodies: list[bytes], step: int, noise: bytes) -> None:
    noise = noise.replace(b"\0", b"")
    sent = noise + GREETING + b"".join(encode("x", body, n=i) for i, body in enumerate(bodies))
    decoder = Decoder(after_greeting=True)
    found = []
    for at in range(0, len(sent), step):
        found += decoder.feed(sent[at : at + step])
    assert [(m.kind, m.head["n"], m.body) for m in found] == [
        ("x", i, body) for i, body in enumerate(bodies)
    ]
    assert decoder.noise == noise
    assert decoder.greeted


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">IQ", MAX_HEAD + 1, 0), "too long"),
        (struct.pack(">IQ", 0, MAX_BODY + 1), "too long"),
        (struct.pack(">IQ", 2, 0) + b"{}", "no head with a kind"),
        (struct.pack(">IQ", 3, 0) + b"[1]", "no head with a kind"),
        (struct.pack(">IQ", 2, 0) + b"\xff{", "no head with a kind"),
        (struct.pack(">IQ", 10, 0) + b'{"kind":1}', "kind of a message is no text"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        Decoder(after_greeting=False).feed(data)


def test_endless_noise_before_the_greeting_is_refused() -> None:
    decoder = Decoder(after_greeting=True)
    for _ in range(8):
        decoder.feed(b"y\n" * 4096)
    with pytest.raises(ChannelError, match="something else writes to its output"):
        decoder.feed(b"y\n" * 4096)


def test_what_would_be_refused_is_not_sent() -> None:
    with pytest.raises(ChannelError, match="too long"):
        encode("x", bytes(MAX_BODY + 1))


def test_a_channel_keeps_what_a_full_pipe_does_not_take() -> None:
    a_reads, b_writes = os.pipe()
    b_reads, a_writes = os.pipe()
    one, other = Channel(a_reads, a_writes, False), Channel(b_reads, b_writes, False)
    body = bytes(range(256)) * 4096
    one.send("big", body)
    assert one.backlog
    found = []
    while not found:
        one.write_some()
        found = other.receive()
    assert found[0].body == body
    assert not one.backlog
    one.close()
    assert other.receive() == []
    assert other.closed
    other.send("lost")  # the reader has gone: nothing is raised, and nothing is kept
    assert not other.backlog
    other.close()


def test_a_head_that_is_nested_too_deeply_is_no_message() -> None:
    head = b"[" * 100_000
    with pytest.raises(ChannelError, match="no head with a kind"):
        Decoder(False).feed(struct.pack(">IQ", len(head), 0) + head)


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel.of(one, TRUSTED), Channel.of(other, TRUSTED)


def test_a_trusted_channel_takes_what_is_longer_than_the_bounds() -> None:
    one, other = pair()
    body = bytes(MAX_BODY + 1)
    sender = threading.Thread(target=lambda: (one.send("big", body), one.flush(30.0)))
    sender.start()
    found = other.next(30.0)
    sender.join()
    assert found is not None
    assert found.body == body
    one.close()
    other.close()


def test_the_next_message_is_waited_for() -> None:
    one, other = pair()
    with pytest.raises(TimeoutError):
        other.next(0.0)
    one.send("a", n=1)
    one.send("b", b"c")
    one.close_input()
    found = [other.next(10.0) for _ in range(3)]
    assert [each and (each.kind, each.body) for each in found] == [("a", b""), ("b", b"c"), None]
    other.send("answer")  # the other direction of the socket is open
    assert one.next(10.0) is not None
    one.close()
    other.close()


def test_a_reader_that_reads_nothing_ends_a_flush() -> None:
    one, other = pair()
    one.send("big", bytes(1 << 22))
    with pytest.raises(TimeoutError):
        one.flush(0.05)
    other.break_off()
    with pytest.raises(BrokenPipeError):
        one.flush(10.0)
    one.close()
    other.close()
