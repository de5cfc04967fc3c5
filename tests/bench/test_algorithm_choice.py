"""What a report between hosts says about the engine's choice of algorithms."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import pytest

from bench.test_report import shown
from lockstep._errors import ConfigError
from lockstep.bench import algorithm_choice, session, summary
from lockstep.bench.cases import HLO_NAMES, OPS, Case, parse_sizes
from lockstep.bench.hosts import Hosts
from lockstep.bench.job import IMPLEMENTATIONS
from lockstep.bench.runner import CaseResult, Measurement
from lockstep.hosts.host_list import Host, Placed
from lockstep.inspection import algorithm_table, algorithms
from lockstep.inspection.algorithms import Link
from support import assert_unsaid

ENGINES = ("lockstep", "plain", "unrecorded", "strict")
FAR = Link(latency=5e-3, per_byte=1e-9, overhead=5e-3)
LOCAL = Link(latency=60e-6, per_byte=1.5e-9, overhead=20e-6)
SIZES = parse_sizes("1KiB:16MiB")


def results(link: Link, ranks: int, hosts: int, **given: Any) -> list[CaseResult]:
    """Times as the model has them, of the algorithms that the engine takes by itself."""
    names: tuple[str, ...] = given.get("names", ("lockstep", "gloo"))
    disturb: Callable[[int], float] = given.get("disturb", lambda index: 1.0)
    found = []
    for op in given.get("ops", OPS):
        for size in given.get("sizes", SIZES):
            case = Case.of_size(op, size, ranks, "f32")
            whole = algorithm_table.host_bytes(HLO_NAMES[op], case.bytes, ranks // hosts)
            seconds = link.seconds(algorithms.counts(HLO_NAMES[op], hosts, whole))
            seconds = max(seconds * disturb(len(found)), 1e-6)
            # The median of all samples counts, and not that of the fastest block.
            first = Measurement(blocks=[[seconds, seconds], [seconds * 5], [seconds / 5]])
            others = {name: Measurement(blocks=[[1.0]]) for name in names[1:]}
            found.append(CaseResult(case, {names[0]: first, **others}))
    return found


def report(
    link: Link, processes: tuple[int, ...] = (1, 1, 1, 1), devices: int = 1, **given: Any
) -> dict[str, Any]:
    ranks = sum(processes) * devices
    facts = {
        "machine": {"cpu": "AMD EPYC", "usable_cores": 2, "memory": 24 << 30},
        "versions": {},
        "job": {"processes": sum(processes), "devices": devices, "ranks": ranks, "dtype": "f32"},
        "hosts": {
            "processes": dict(zip("abcdefgh", processes, strict=False)),
            "even": len(set(processes)) == 1,
            "line": None,
            "pairs": [],
            "prescribed_algorithms": given.get("prescribed", ""),
        },
    }
    names = given.get("names", ("lockstep", "gloo"))
    return summary.document(results(link, ranks, len(processes), **given), names, facts)


def noise(index: int) -> float:
    """A factor of 10 between one case and the next."""
    return 10.0 if index % 2 else 1.0


@pytest.mark.parametrize(("processes", "devices"), [((1,) * 4, 1), ((2,) * 4, 1), ((2,) * 4, 2)])
def test_the_costs_are_those_of_the_network(processes: tuple[int, ...], devices: int) -> None:
    found = report(FAR, processes, devices)["algorithms"]
    assert found["latency"] == pytest.approx(FAR.latency)
    assert found["seconds_per_byte"] == pytest.approx(FAR.per_byte)
    assert found["overhead"] == pytest.approx(FAR.overhead)
    assert found["seconds_per_added_byte"] == pytest.approx(0, abs=1e-14)
    assert found["error"] == pytest.approx(1)
    rows = algorithm_table.table(4, processes[0] * devices, FAR)
    assert found["text"] == algorithm_table.text(rows)
    assert found["text"].startswith("all-reduce=recursive-doubling:")
    assert [(row["op"], row["up_to"]) for row in found["rows"]] == [
        (row.op, row.up_to) for row in algorithm_table.prescribed(rows)
    ]
    assert json.loads(json.dumps(found)) == found


def test_a_permute_counts_where_it_leaves_the_host() -> None:
    ops = ("all_reduce", "permute")
    given = {"ops": ops, "disturb": lambda index: 1.0 if index < len(SIZES) else 100.0}
    alone, shared = report(FAR, **given), report(FAR, (2,) * 4, **given)
    assert shared["algorithms"]["error"] == pytest.approx(1)
    assert alone["algorithms"]["error"] > 2


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_only_the_engine_has_algorithms(name: str) -> None:
    found = report(FAR, names=(name, "gloo" if name != "gloo" else "lockstep"))
    assert (found["algorithms"] is not None) == (name in ENGINES)


@pytest.mark.parametrize(
    ("what", "processes", "given"),
    [
        ("uneven hosts", (2, 1), {}),
        ("one host", (4,), {}),
        ("few cases", (1,) * 4, {"sizes": (1024, 1 << 24), "ops": ("all_reduce", "permute")}),
        ("no case", (1,) * 4, {"ops": ()}),
        ("small sizes: no rate", (1,) * 4, {"sizes": (1024, 2048, 4096)}),
        ("large sizes: no latency", (1,) * 4, {"sizes": (1 << 24, 1 << 25, 1 << 26)}),
        ("algorithms that are set", (1,) * 4, {"prescribed": "all-reduce=ring"}),
    ],
)
def test_what_says_nothing_about_the_choice(
    what: str, processes: tuple[int, ...], given: dict[str, Any]
) -> None:
    found = report(LOCAL, processes, **given)
    assert found["algorithms"] is None, what
    assert "model" not in shown(found)


def test_a_failed_case_is_left_out() -> None:
    found = results(FAR, 4, 4)
    found[3].by_implementation["lockstep"].status = "failed"
    whole = report(FAR)
    facts = {key: whole[key] for key in ("machine", "versions", "job", "hosts")}
    less = summary.document(found, ("lockstep", "gloo"), facts)["algorithms"]
    assert less["text"] == whole["algorithms"]["text"]
    assert less["latency"] == pytest.approx(FAR.latency)


def test_on_one_machine_there_is_no_field() -> None:
    facts = {"job": {"processes": 2, "devices": 1}}
    assert "algorithms" not in summary.document(results(FAR, 2, 2), ("lockstep", "gloo"), facts)


def test_a_bad_fit_gives_no_advice() -> None:
    found = report(FAR, disturb=noise)
    assert found["algorithms"]["error"] > algorithm_choice.MAX_ERROR
    assert found["algorithms"]["text"] is None
    assert found["algorithms"]["rows"] == []
    text = shown(found)
    assert "too much to compare algorithms" in text
    assert_unsaid("LOCKSTEP_ALGORITHMS", text)


def test_another_algorithm_gains_more_than_the_model_is_off() -> None:
    found = report(LOCAL, disturb=lambda index: 2.5 if index % 2 else 1.0)["algorithms"]
    assert algorithm_table.MIN_GAIN < found["error"] < algorithm_choice.MAX_ERROR
    assert found["least_gain"] == found["error"]
    link = Link(
        found["latency"],
        found["seconds_per_byte"],
        found["overhead"],
        found["seconds_per_added_byte"],
    )
    assert found["text"] == algorithm_table.text(algorithm_table.table(4, 1, link, found["error"]))
    assert found["text"] != algorithm_table.text(algorithm_table.table(4, 1, link))


def test_the_advice_is_shown_with_what_it_is_from() -> None:
    lines = shown(report(FAR))
    text = " ".join(lines.split())
    for words in (
        "fitted to lockstep, a message between hosts takes 5.00 ms, and bytes go at 8.00 Gbit/s",
        "off by a factor of 1.00 in the median",
        "algorithms for this network",
        "recursive-doubling",
        "up to 4 MiB",
        "1.98x as fast as the engine's own",
        "all runs that are to be compared",
    ):
        assert words in text
    assert f"LOCKSTEP_ALGORITHMS={report(FAR)['algorithms']['text']}" in lines.splitlines()


def test_the_line_to_set_is_one_line_on_a_narrow_terminal() -> None:
    narrow = Link(latency=60e-6, per_byte=1e-6, overhead=1e-6)
    found = report(narrow, sizes=parse_sizes("4B:1MiB"))
    expected = f"LOCKSTEP_ALGORITHMS={found['algorithms']['text']}"
    assert len(expected) > 60
    assert "all sizes" in shown(found)
    assert expected in shown(found, width=50).splitlines()


def test_nothing_to_change_is_one_sentence() -> None:
    found = report(Link(latency=40e-6, per_byte=1.5e-9, overhead=40e-6))
    assert found["algorithms"]["text"] == ""
    assert found["algorithms"]["rows"] == []
    text = shown(found)
    assert "nothing is 1.25 times as fast as the engine's own algorithms" in text
    assert_unsaid("LOCKSTEP_ALGORITHMS", text)


@pytest.mark.parametrize("prescribed", ["", "all-reduce=ring"])
def test_the_report_has_the_algorithms_that_the_user_has_set(
    prescribed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_ALGORITHMS", prescribed)
    placed = tuple(Placed(Host(name), rank, 1) for rank, name in enumerate("abcd"))
    args = argparse.Namespace(devices=1, dtype="f32", repeats=1, bind=None)
    part = session.Part(args, ("lockstep", "gloo"), Hosts((), placed))
    part.results += results(FAR, 4, 4)
    found = part.document(session.Links([], None))
    assert found["hosts"]["prescribed_algorithms"] == prescribed
    assert (found["algorithms"] is None) == bool(prescribed)


def test_a_bad_variable_is_an_error_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKSTEP_ALGORITHM", "ring")
    with pytest.raises(ConfigError, match="LOCKSTEP_ALGORITHMS"):
        session.Part(argparse.Namespace(), ("lockstep",), Hosts((), (Placed(Host("a"), 0, 2),)))
