"""The measurements as the document that ``--json`` writes and the table and plot show. Pure.

The schema is described in docs/reference/bench.md; `SCHEMA` changes when a field changes its
meaning.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._config import Link
from lockstep.bench import algorithm_choice
from lockstep.bench.cases import LARGE, OPS, SMALL, Case
from lockstep.bench.runner import CaseResult, Measurement
from lockstep.bench.stats import Spread, block_ratios

SCHEMA = "lockstep.bench/1"


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return dataclasses.asdict(Spread.of(values)) if values else None


def _measurement(case: Case, measurement: Measurement) -> dict[str, Any]:
    samples = [sample for block in measurement.blocks for sample in block]
    seconds = _spread(samples) if measurement.status == "ok" else None
    return {
        "status": measurement.status,
        "reason": measurement.reason,
        "seconds": seconds,
        "call_seconds": _spread(measurement.calls) if seconds else None,
        "bus_bytes_per_second": case.bus_bytes / seconds["median"] if seconds else None,
        "loop": measurement.loop,
        "blocks": measurement.blocks,
        "wrong_blocks": measurement.wrong_blocks,
    }


def _shares(result: CaseResult, measurement: Measurement) -> dict[str, float] | None:
    """Least traffic over time and copy rate, block by block: 1 is a copy's speed."""
    if measurement.status != "ok":
        return None
    traffic = result.case.least_traffic
    pairs = zip(measurement.blocks, result.copy_rates, strict=False)
    return _spread([traffic / (Spread.of(b).median * rate) for b, rate in pairs if b])


def case_entry(result: CaseResult, implementations: Sequence[str]) -> dict[str, Any]:
    """The entry of one case; ratios are each other implementation's time over the first's."""
    first, *others = implementations
    found = result.by_implementation
    ratios = {}
    for other in others:
        both = found[other].status == found[first].status == "ok"
        ratios[other] = (
            _spread(block_ratios(found[other].blocks, found[first].blocks)) if both else None
        )
    return {
        "op": result.case.op,
        "bytes": result.case.bytes,
        "elements": result.case.elements,
        "least_traffic_bytes": result.case.least_traffic,
        "results": {name: _measurement(result.case, found[name]) for name in implementations},
        "ratio": ratios,
        "share_of_limit": {name: _shares(result, found[name]) for name in implementations},
    }


def _line_entry(case: Case, results: Mapping[str, Any], hosts: Mapping[str, Any]) -> dict[str, Any]:
    """What has to cross a link in a case between hosts, and the share of its rate that takes."""
    if not hosts["even"]:
        return {"crossing_bytes": None, "share_of_line": dict.fromkeys(results)}
    crossing = case.crossing_bytes(len(hosts["processes"]))
    shares = {}
    for name, result in results.items():
        seconds, line = result["seconds"], hosts["line"]
        shares[name] = None
        if seconds and line:
            shares[name] = crossing / seconds["median"] / line["bytes_per_second"]
    return {"crossing_bytes": crossing, "share_of_line": shares}


def _in_range(entry: Mapping[str, Any], name: str) -> bool:
    size = entry["bytes"]
    return {"all": True, "small": size <= SMALL, "large": size >= LARGE}[name]


def geometric_means(
    entries: Sequence[Mapping[str, Any]], others: Sequence[str]
) -> list[dict[str, Any]]:
    """Geometric means of the ratios, by operation (and all together) and range of sizes."""
    means = []
    for other in others:
        for op in (*OPS, "all"):
            mine = [e for e in entries if op in (e["op"], "all") and e["ratio"][other]]
            if not mine:
                continue
            row: dict[str, Any] = {"op": op, "implementation": other}
            for name in ("small", "large", "all"):
                ratios = [e["ratio"][other]["median"] for e in mine if _in_range(e, name)]
                row[name] = statistics.geometric_mean(ratios) if ratios else None
            row["least"] = min(e["ratio"][other]["median"] for e in mine)
            means.append(row)
    return means


def document(
    results: Sequence[CaseResult], implementations: Sequence[str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole report. ``facts`` (command, time, machine, versions, job, and hosts if there are
    several) go in as they are."""
    entries = [case_entry(result, implementations) for result in results]
    if hosts := facts.get("hosts"):
        for result, entry in zip(results, entries, strict=True):
            entry |= _line_entry(result.case, entry["results"], hosts)
    report = {
        "schema": SCHEMA,
        **facts,
        "implementations": list(implementations),
        "copy_bytes_per_second": _spread([r for result in results for r in result.copy_rates]),
        "cases": entries,
        "geometric_means": geometric_means(entries, implementations[1:]),
    }
    report["linalg_link"] = linalg_link(entries, implementations[0])
    if hosts:
        report["algorithms"] = algorithm_choice.of(report)
    return report


def linalg_link(entries: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """The value of ``LOCKSTEP_LINALG_LINK`` by the all-gathers of an implementation: the smallest
    one's time and the largest one's rate. None without a small one and a large one."""
    gathers = [
        (entry["bytes"], result["seconds"]["median"], result["bus_bytes_per_second"])
        for entry in entries
        if entry["op"] == "all_gather" and (result := entry["results"][name])["seconds"]
    ]
    if not gathers or min(gathers)[0] > SMALL or max(gathers)[0] < LARGE:
        return None
    latency, rate = min(gathers)[1] * 1e6, max(gathers)[2] / 1e9
    link = Link(float(f"{latency:.3g}") / 1e6, float(f"{rate:.3g}") * 1e9)
    return str(link) if link.latency and link.rate else None


def succeeded(report: Mapping[str, Any]) -> bool:
    """Whether the first implementation measured every case that fits into memory."""
    first = report["implementations"][0]
    states = [entry["results"][first] for entry in report["cases"]]
    return "ok" in {s["status"] for s in states} and all(
        s["status"] in ("ok", "skipped") and not s["wrong_blocks"] for s in states
    )
