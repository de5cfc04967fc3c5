"""What the watchdogs of different hosts write to each other: a head in JSON, then bytes. Pure.

Clocks: the client notes when it asked and when it received; the server, when it was asked and when
it answered. So the one clock's lead over the other lies between two bounds, however the hosts'
clocks are set.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep._run_files import Exit
from lockstep.flight_recorder import format, run_records
from lockstep.flight_recorder.waits import waits_of

Callers = Mapping[int, tuple[run_records.Caller, ...]]
"""The lines of the program behind each site."""
_MAX_BODY = 1 << 28
"""Bytes, unpacked."""


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    return json.dumps(head).encode() + b"\0" + body


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises ValueError for what is no note."""
    head, _, body = message.partition(b"\0")
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError("a note without a head")
    return found, body


def pack_processes(processes: Sequence[run_records.Process]) -> tuple[list[dict[str, Any]], bytes]:
    """Records and lines of processes: a part of a head, and a body."""
    reports, records = [], []
    for process in processes:
        record = encode_record(process.record) if process.record else b""
        records.append(record)
        reports.append(
            {
                "index": process.index,
                "bytes": len(record),
                "sites": [_fields(site) for site in process.sites],
                "callers": pack_callers(process.callers),
                "problems": list(process.problems),
                "waits": process.waits.values(),
                "exit": _fields(process.exit) if process.exit else None,
            }
        )
    return reports, zlib.compress(b"".join(records), 1)


def encode_record(record: format.ProcessRecord) -> bytes:
    """A recorder file with the entries of ``record``."""
    # The rings are a power of two long: from the first entry on, numbers may lack.
    most = max((r.written - r.entries[0].number for r in record.rings if r.entries), default=0)
    return format.encode(record, 1 << most.bit_length())


def _fields(of: run_records.Site | run_records.Caller | Exit) -> list[Any]:
    return [getattr(of, name) for name in of.__slots__]


def _site(fields: Sequence[Any]) -> run_records.Site:
    return run_records.site_of(dict(zip(run_records.Site.__slots__, fields, strict=True)))


def pack_callers(callers: Callers) -> dict[str, list[list[Any]]]:
    """The lines behind sites, as JSON has them."""
    return {str(site): [_fields(each) for each in lines] for site, lines in callers.items()}


def unpack_callers(found: Mapping[str, Any]) -> Callers:
    """What `pack_callers` has packed. Raises ValueError or TypeError for anything else."""
    return {int(site): run_records.callers_of(lines) for site, lines in found.items()}


def unpack_processes(reports: Iterable[dict[str, Any]], body: bytes) -> list[run_records.Process]:
    """Raises ValueError, KeyError, TypeError, `RecordError` or zlib.error for what is none."""
    unpacker = zlib.decompressobj()
    records = unpacker.decompress(body, _MAX_BODY)
    if not unpacker.eof:
        raise ValueError("the records are cut short, or too long")
    found, at = [], 0
    for one in reports:
        count = int(one["bytes"])
        record = format.parse(records[at : at + count]) if count else None
        at += count
        sites = tuple(map(_site, one["sites"]))
        problems = tuple(map(str, one["problems"]))
        ending = Exit(*one["exit"]) if one["exit"] else None
        found.append(
            run_records.Process(
                int(one["index"]),
                record,
                sites,
                exit=ending,
                problems=problems,
                callers=unpack_callers(one["callers"]),
                waits=waits_of(one["waits"]),
            )
        )
    return found
