"""The recorder's file: one process's latest collectives, a ring for each of its devices. Pure.

The engine writes the file through a shared mapping and never waits for a reader. So a reader may
see data that is slightly old, or an entry that is half written. Numbers are little-endian.

    0       header, 4096 bytes: the process, and two clocks read at the same moment
    4096    cliques, 65536 bytes: each a hash, a size and the device ids in rank order
    69632   the rings: a header of 64 bytes, then 1024 entries of 128 bytes

Entry number k (from 1) lies in slot (k - 1) modulo 1024 and contains its number. A slot with
another number is being written, or was overwritten while the reader copied it, and is left out.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lockstep._errors import RecordError

MAGIC = b"LOCKSTEP"
VERSION = 1
HEADER_BYTES = 4096
CLIQUE_BYTES = 65536
RING_HEADER_BYTES = 64
ENTRY_BYTES = 128
ENTRIES = 1024
LISTED_TARGETS = 8
"""How many targets of a permute an entry lists; it counts all of them."""
TIME_ERROR_NS = 2_000
"""How far off its clock an entry's times may be (``native/recorder/tsc_clock.h``)."""
UNTIMED_BYTES = 4096
"""Up to this size the engine does not read the clock at the end of a collective that had to wait
(``kSmall`` in ``native/recorder/recorder.cc``)."""

RINGS_AT = HEADER_BYTES + CLIQUE_BYTES

# magic, version, header bytes, entry bytes, entries, rings, ring bytes, process, processes, pid,
# attempt, nonce, monotonic, realtime, state, clique words, host, label
_HEADER = struct.Struct("<8s10IQqqII64s112s")
STATE_AT = struct.calcsize("<8s10IQqq")
"""The offset in the header of the state of the process, then the number of clique words."""
_RING = struct.Struct("<Qii")
# number, clique, run, op id, count, bytes, sequence, op, dtype, reduction, state, entered, arrived,
# done, rank, source, targets, eight targets, site
_ENTRY = struct.Struct("<QQqqQQIBBBBqqqiii8iI")
assert _ENTRY.size == ENTRY_BYTES
# The number alone, with room for the rest of an entry.
_NUMBER = struct.Struct(f"<Q{ENTRY_BYTES - 8}x")

DTYPES = ("byte", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f32", "f64", "c64", "c128")
DTYPES += ("f16", "bf16", "f8e4m3", "f8e5m2")  # only NCCL has these
REDUCTIONS = ("", "sum", "product", "min", "max")


class Op(enum.IntEnum):
    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_TO_ALL = 3
    PERMUTE = 4
    BROADCAST = 5
    """Only NCCL runs this one."""
    PROGRAM = 6
    """The launch of a program with collectives, where these are not recorded themselves."""


_PERMUTE = int(Op.PERMUTE)
OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
OPS += ("collective-broadcast", "program")


class State(enum.IntEnum):
    """The state of a collective on one device."""

    ENTERED = 1
    DONE = 2
    RAISED = 3


class ProcessState(enum.IntEnum):
    """The state of a process's program."""

    RUNNING = 0
    ENDED = 1
    """The program ended, and all that it dispatched has run: it will call no more collectives."""
    FAILED = 2
    """An uncaught exception ended the program."""


class Entry(NamedTuple):
    """One collective on one device.

    Times are nanoseconds of CLOCK_MONOTONIC, with an error of up to `TIME_ERROR_NS`, and ascend on
    one device.
    """

    number: int
    clique: int
    run_id: int
    """XLA's id of this execution of the program, the same on all processes; 0: not known."""
    op_id: int
    """The collective's channel in its program; 0: not known.

    NCCL has no channels: -1 while it is queued, 1 once the device has begun it.
    """
    elements: int
    """Per rank; bytes for all-to-all and permute."""
    bytes: int
    sequence: int
    """Collectives that this communicator ran before; permutes are counted separately."""
    op: int
    dtype: int
    reduction: int
    state: int
    entered_ns: int
    arrived_ns: int
    """When all members had arrived; 0: not known, or not yet."""
    done_ns: int
    """When it ended or raised; 0: not yet. Of a collective of up to `UNTIMED_BYTES` that had to
    wait: the same as `arrived_ns`."""
    rank: int = 0
    source: int = -1
    """The rank that a permute receives from; -1: none."""
    target_count: int = 0
    targets: tuple[int, ...] = ()
    """The ranks that a permute sends to, the first `LISTED_TARGETS` of them."""
    site: int = 0
    """A hash of the program lines that made the call; 0: not known (without ``--strict``)."""

    @property
    def is_permute(self) -> bool:
        return self.op == _PERMUTE

    @property
    def unfinished(self) -> bool:
        return self.state != State.DONE

    @property
    def identified(self) -> bool:
        """Whether it is known which collective of which program this is."""
        return self.run_id != 0 and self.op_id != 0

    @property
    def is_of_nccl(self) -> bool:
        """Whether NCCL ran it, which knows of no programs."""
        return self.run_id == 0 and self.op_id != 0

    @property
    def signature(self) -> tuple[int, int, int, int]:
        """The properties that must be equal on all members, apart from the program."""
        return self.op, self.dtype, self.reduction, self.elements

    def other_line(self, other: Entry) -> bool:
        """Whether the two calls are known to come from different lines of the program."""
        return 0 != self.site != other.site != 0


@dataclass(frozen=True, slots=True)
class Ring:
    """The latest collectives of one device."""

    device: int
    """Global device id."""
    local_index: int
    written: int
    """How many entries were ever begun."""
    entries: tuple[Entry, ...]
    """The entries that could be read, ascending in number."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The contents of one recorder file."""

    process: int
    num_processes: int
    pid: int
    host: str
    label: str
    attempt: int = 0
    nonce: int = 0
    """The same in all files of a job."""
    state: int = ProcessState.RUNNING
    monotonic_ns: int = 0
    realtime_ns: int = 0
    """The two clocks at the same moment."""
    cliques: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Pairs of hash and device ids in rank order, of as many cliques as fit into the file.

    Of a communicator of NCCL each process knows its own device only: the others are -1."""
    rings: tuple[Ring, ...] = ()


def parse(
    buffer: bytes | memoryview,
    again: bytes | memoryview | None = None,
    before: bytes | memoryview | None = None,
    *,
    latest: int | None = None,
    after: Mapping[int, int] | None = None,
) -> ProcessRecord:
    """Reads a recorder file.

    ``before`` and ``again`` are copies of the same file, made before and after ``buffer``: an entry
    whose number differs in them was overwritten meanwhile and is left out. A file that is not being
    written needs neither. ``latest`` limits the result to that many entries of each ring; ``after``
    maps a device to the last number that is not wanted.

    Raises `RecordError` when the buffer is no recorder file, is incomplete, or has another version.
    """
    fields = _header(buffer)
    entries, rings, ring_bytes = fields[4:7]
    end = RINGS_AT + rings * ring_bytes
    if len(buffer) < (end if rings else HEADER_BYTES):
        raise RecordError(
            f"the recorder file is truncated: it has {len(buffer)} bytes, and its header announces "
            f"{end} (a full disk, or an incomplete copy?)"
        )
    view = memoryview(buffer)
    others = tuple(
        view if copy is None or len(copy) < end else memoryview(copy) for copy in (before, again)
    )
    (process, num_processes, pid, attempt, nonce, monotonic, realtime, state, words) = fields[7:16]
    return ProcessRecord(
        process=process,
        num_processes=num_processes,
        pid=pid,
        host=_text(fields[16]),
        label=_text(fields[17]) or f"process {process}",
        attempt=attempt,
        nonce=nonce,
        state=state,
        monotonic_ns=monotonic,
        realtime_ns=realtime,
        cliques=tuple(_cliques(view, words)),
        rings=tuple(
            _ring(
                view[at : at + ring_bytes],
                [other[at : at + ring_bytes] for other in others],
                entries,
                entries if latest is None else latest,
                after or {},
            )
            for at in range(RINGS_AT, end, ring_bytes or 1)
        ),
    )


def _header(buffer: bytes | memoryview) -> tuple:
    if len(buffer) < len(MAGIC) or bytes(buffer[: len(MAGIC)]) != MAGIC:
        raise RecordError("this is no recorder file: it does not begin with LOCKSTEP")
    if len(buffer) < HEADER_BYTES:
        raise RecordError(
            f"the recorder file is truncated: it has {len(buffer)} bytes, and its header alone has "
            f"{HEADER_BYTES}"
        )
    fields = _HEADER.unpack_from(buffer)
    if fields[1] != VERSION:
        raise RecordError(
            f"the recorder file has version {fields[1]}, this Lockstep reads version {VERSION}: "
            "use the Lockstep that wrote it"
        )
    entries, ring_bytes = fields[4], fields[6]
    sound = (
        fields[2:4] == (HEADER_BYTES, ENTRY_BYTES)
        and entries > 0
        and entries & (entries - 1) == 0
        and ring_bytes == RING_HEADER_BYTES + entries * ENTRY_BYTES
    )
    if not sound:
        raise RecordError("the recorder file is damaged: the sizes in its header do not fit")
    return fields


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _cliques(view: memoryview, words: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    area = view[HEADER_BYTES : min(HEADER_BYTES + 4 * words, RINGS_AT)]
    at = 0
    while at + 12 <= len(area):
        low, high, size = struct.unpack_from("<IIi", area, at)
        at += 12
        if size <= 0 or at + 4 * size > len(area):
            return
        yield high << 32 | low, struct.unpack_from(f"<{size}i", area, at)
        at += 4 * size


def _ring(
    view: memoryview,
    others: Sequence[memoryview],
    entries: int,
    latest: int,
    after: Mapping[int, int],
) -> Ring:
    written, device, local_index = _RING.unpack_from(view)
    wanted = min(entries, latest, max(0, written - after.get(device, 0)))
    oldest = max(0, written - wanted)
    first = oldest % entries
    end = first + min(written - oldest, entries)
    found = _slots(view, others, entries, range(first, min(end, entries)), oldest)
    found += _slots(view, others, entries, range(max(0, end - entries)), oldest)
    found.sort()
    return Ring(device, local_index, max(written, found[-1].number if found else 0), tuple(found))


def _slots(
    view: memoryview, others: Sequence[memoryview], entries: int, slots: range, oldest: int
) -> list[Entry]:
    """The valid entries with numbers above ``oldest`` among some slots of a ring.

    A processor may load the parts of one copy in any order (aarch64 does), but it loads a copy
    after the one before. So an entry counts if the copies before and after have its number too: it
    was complete when the first was made, and not yet overwritten when the second was.

    A job has a hundred thousand entries and more, so this loop takes most of the time of reading.
    """
    there = slice(*(RING_HEADER_BYTES + at * ENTRY_BYTES for at in (slots.start, slots.stop)))
    early, late = (_NUMBER.iter_unpack(other[there]) for other in others)
    make, found = tuple.__new__, []
    for slot, fields, (number,), last in zip(
        slots, _ENTRY.iter_unpack(view[there]), early, late, strict=True
    ):
        # A number above `written` began after the ring's header was copied.
        expected = number == last[0] == fields[0] > oldest and (number - 1) % entries == slot
        op, dtype, reduction, state = fields[7:11]
        sound = op <= _LAST_OP and dtype <= _LAST_DTYPE and reduction <= _LAST_REDUCTION
        if expected and sound and _FIRST_STATE <= state <= _LAST_STATE:
            if state == _DONE and not fields[13]:  # copied between the two writes
                fields = (*fields[:10], _FIRST_STATE, *fields[11:])
            listed = fields[16]
            targets = fields[17 : 17 + min(listed, LISTED_TARGETS)] if listed > 0 else ()
            found.append(make(Entry, (*fields[:17], targets, fields[25])))
    return found


_LAST_OP, _LAST_DTYPE, _LAST_REDUCTION = len(OPS) - 1, len(DTYPES) - 1, len(REDUCTIONS) - 1
_FIRST_STATE, _LAST_STATE = int(State.ENTERED), int(State.RAISED)
_DONE = int(State.DONE)


def encode(record: ProcessRecord, entries: int = ENTRIES) -> bytes:
    """The file that `parse` reads as ``record``: for tests, and as documentation of the format.

    ``entries`` is the length of a ring. Older entries are overwritten, as in the engine.
    """
    words = b"".join(
        struct.pack(f"<IIi{len(members)}i", key & 0xFFFFFFFF, key >> 32, len(members), *members)
        for key, members in record.cliques
    )
    ring_bytes = RING_HEADER_BYTES + entries * ENTRY_BYTES
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        HEADER_BYTES,
        ENTRY_BYTES,
        entries,
        len(record.rings),
        ring_bytes,
        record.process,
        record.num_processes,
        record.pid,
        record.attempt,
        record.nonce,
        record.monotonic_ns,
        record.realtime_ns,
        record.state,
        len(words) // 4,
        record.host.encode(),
        record.label.encode(),
    )
    rings = b"".join(_encode_ring(ring, entries) for ring in record.rings)
    return head.ljust(HEADER_BYTES, b"\0") + words.ljust(CLIQUE_BYTES, b"\0") + rings


def _encode_ring(ring: Ring, entries: int) -> bytes:
    head = _RING.pack(ring.written, ring.device, ring.local_index)
    slots = [bytes(ENTRY_BYTES)] * entries
    for entry in ring.entries:
        slots[(entry.number - 1) % entries] = _encode_entry(entry)
    return head.ljust(RING_HEADER_BYTES, b"\0") + b"".join(slots)


def _encode_entry(entry: Entry) -> bytes:
    listed: Sequence[int] = entry.targets[:LISTED_TARGETS]
    padded = (*listed, *[0] * (LISTED_TARGETS - len(listed)))
    return _ENTRY.pack(*entry[:17], *padded, entry.site)
