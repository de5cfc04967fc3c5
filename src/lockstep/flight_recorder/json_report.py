"""A diagnosis and a summary as JSON; docs/reference/report.md describes it. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from lockstep.flight_recorder.calls import Call
from lockstep.flight_recorder.diagnose import Diagnosis, Row
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.format import DTYPES, OPS, REDUCTIONS, State
from lockstep.flight_recorder.phrases import likely, operation
from lockstep.flight_recorder.time_summary import Summary

SCHEMA = "lockstep.report/1"


def document(diagnosis: Diagnosis, summary: Summary | None = None) -> dict[str, Any]:
    """The document that ``lockstep report --json`` prints."""
    place = diagnosis.place
    return {
        "schema": SCHEMA,
        "attempt": diagnosis.attempt,
        "kind": diagnosis.kind.name.lower(),
        "fault": diagnosis.kind.is_fault,
        "headline": headline(diagnosis),
        "culprits": list(diagnosis.culprits),
        "place": place
        and {
            "clique": f"{place.clique:016x}",
            "devices": list(diagnosis.members),
            "sequence": place.sequence,
            "permute": diagnosis.unit == "permute",
        },
        "groups": [list(group) for group in diagnosis.groups],
        "circle": list(diagnosis.circle),
        "causes": [
            {"pattern": c.pattern.name.lower(), "processes": list(c.processes), "text": likely(c)}
            for c in diagnosis.causes
        ],
        "processes": [_row(row) for row in diagnosis.rows],
        "summary": summary and dataclasses.asdict(summary),
    }


def _row(row: Row) -> dict[str, Any]:
    record, exit, error = row.process.record, row.process.exit, row.process.error
    return {
        "process": row.index,
        "host": record.host if record else None,
        "pid": record.pid if record else exit.pid if exit else None,
        "activity": row.activity.name.lower(),
        "culprit": row.culprit,
        "call": row.call and _call(row.call),
        "recent": [
            {"times": r.times, "calls": [_call(call) for call in r.calls]} for r in row.recent
        ],
        "waits_for": list(row.waits_for),
        "compiles": row.process.waits.compiles or None,
        "compiles_for": round(row.process.waits.compiled_for, 1) or None,
        "collectives": row.ran,
        "error": error and error.summary,
        "exit": exit and dataclasses.asdict(exit),
        "problems": list(row.process.problems),
    }


def _call(call: Call) -> dict[str, Any]:
    entry = call.entry
    return {
        "text": operation(entry),
        "op": OPS[entry.op],
        "dtype": DTYPES[entry.dtype],
        "reduction": REDUCTIONS[entry.reduction] or None,
        "elements": entry.elements,
        "bytes": entry.bytes,
        "device": call.device,
        "devices": list(call.members),
        "sequence": entry.sequence,
        "number": entry.number,
        "state": State(entry.state).name.lower(),
        "run_id": entry.run_id,
        "channel": entry.op_id,
        "source": entry.source if entry.is_permute else None,
        "targets": list(entry.targets) if entry.is_permute else None,
        "sites": [
            {
                "file": site.file,
                "line": site.line,
                "first_used": {"file": site.used_file, "line": site.used_line}
                if site.used_file
                else None,
                "module": site.module,
                "through": {"file": site.through_file, "line": site.through_line}
                if site.through_file
                else None,
                "op_name": site.op_name,
                "fingerprint": site.fingerprint,
            }
            for site in call.sites
        ],
        "callers": [dataclasses.asdict(caller) for caller in call.callers],
    }
