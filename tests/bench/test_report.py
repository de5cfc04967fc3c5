"""The document, the tables and the plot of made-up results."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from lockstep._config import Link
from lockstep.bench import plot, progress, session, summary, table
from lockstep.bench.cases import Case
from lockstep.bench.job import IMPLEMENTATIONS
from lockstep.bench.runner import CaseResult, Measurement
from support import assert_unsaid

FACTS = {
    "command": "lockstep bench",
    "machine": {"cpu": "AMD EPYC", "usable_cores": 2, "memory": 24 << 30},
    "versions": {"jax": "0.10.2", "jaxlib": "0.10.2", "lockstep": "0.1.0"},
    "job": {"processes": 2, "devices": 1, "dtype": "f32"},
}
NAMES = ("lockstep", "gloo")
MIB = 1 << 20


def measured(*seconds: float) -> Measurement:
    return Measurement(blocks=[[s] for s in seconds], calls=[2 * s for s in seconds])


def results() -> list[CaseResult]:
    small = Case.of_size("all_reduce", 1024, 2, "f32")
    large = Case.of_size("all_reduce", MIB, 2, "f32")
    gather = Case.of_size("all_gather", 1024, 2, "f32")
    return [
        CaseResult(small, {"lockstep": measured(1e-5, 1e-5), "gloo": measured(4e-4, 4e-4)}),
        CaseResult(
            large,
            {"lockstep": measured(2e-4, 4e-4, 2e-4), "gloo": measured(2e-3, 4e-3, 2e-3)},
            copy_rates=[4e10, 2e10, 4e10],
        ),
        CaseResult(
            gather,
            {"lockstep": measured(1e-5), "gloo": Measurement("failed", "SIGABRT of process 1")},
        ),
    ]


def report() -> dict[str, Any]:
    return summary.document(results(), NAMES, FACTS)


def shown(found: dict[str, Any], width: int = 140) -> str:
    stream = io.StringIO()
    table.show(found, Console(file=stream, width=width))
    return stream.getvalue()


def test_the_document_survives_json() -> None:
    assert json.loads(json.dumps(report())) == report()
    assert report()["schema"] == "lockstep.bench/1"


def test_ratio_and_share_come_from_blocks_side_by_side() -> None:
    entry = report()["cases"][1]
    # The second block ran while the machine was half as fast: neither figure moves.
    assert entry["ratio"]["gloo"] == pytest.approx({"median": 10, "q1": 10, "q3": 10})
    share = 4 * MIB / (2e-4 * 4e10)
    assert entry["share_of_limit"]["lockstep"]["median"] == pytest.approx(share)
    assert entry["share_of_limit"]["lockstep"]["q1"] == pytest.approx(share)


def test_bus_bandwidth() -> None:
    entry = report()["cases"][1]["results"]["lockstep"]
    assert entry["bus_bytes_per_second"] == pytest.approx(MIB / 2e-4)


def test_a_failure_has_a_reason_and_no_numbers() -> None:
    entry = report()["cases"][2]
    assert entry["results"]["gloo"]["status"] == "failed"
    assert entry["results"]["gloo"]["seconds"] is None
    assert entry["ratio"]["gloo"] is None


def test_geometric_means_by_operation_and_range() -> None:
    rows = {row["op"]: row for row in report()["geometric_means"]}
    assert set(rows) == {"all_reduce", "all"}
    assert rows["all_reduce"]["small"] == pytest.approx(40)
    assert rows["all_reduce"]["large"] == pytest.approx(10)
    assert rows["all_reduce"]["all"] == pytest.approx(20)
    assert rows["all_reduce"]["least"] == pytest.approx(10)


def gathers(*sizes: int) -> dict[str, Any]:
    found = []
    for size in sizes:
        case = Case.of_size("all_gather", size, 4, "f32")
        seconds = 12.34e-6 if size < MIB else 3 * size / 2.5e9
        found.append(CaseResult(case, {"lockstep": measured(seconds), "gloo": measured(1.0)}))
    return summary.document(found, NAMES, FACTS | {"job": FACTS["job"] | {"ranks": 4}})


def test_the_link_of_linalg_is_that_of_the_all_gathers() -> None:
    found = gathers(1024, 65536, MIB, 16 * MIB)
    assert found["linalg_link"] == "12.3us,2.5GB/s"
    assert Link.parse(found["linalg_link"]) == Link(12.3e-6, 2.5e9)
    assert "LOCKSTEP_LINALG_LINK=12.3us,2.5GB/s" in shown(found).splitlines()
    assert "By the all-gathers of lockstep on 4 devices:" in shown(found)


@pytest.mark.parametrize("sizes", [(), (1024, 65536), (MIB, 16 * MIB)])
def test_without_small_and_large_all_gathers_there_is_no_link(sizes: tuple[int, ...]) -> None:
    found = gathers(*sizes)
    assert found["linalg_link"] is None
    assert_unsaid("LOCKSTEP_LINALG_LINK", shown(found))


def test_success_is_that_of_the_first() -> None:
    assert summary.succeeded(report())
    assert not summary.succeeded(summary.document(results(), ("gloo", "lockstep"), FACTS))
    wrong = results()
    wrong[0].by_implementation["lockstep"].wrong_blocks = 1
    assert not summary.succeeded(summary.document(wrong, NAMES, FACTS))
    assert not summary.succeeded(summary.document([], NAMES, FACTS))


def test_tables_show_times_ratios_share_and_problem() -> None:
    text = shown(report())
    for words in (
        "2 processes x 1 device, f32",
        "gloo / lockstep",
        "10.0 µs (10.0-10.0)",
        "2.00 ms (2.00-3.00)",
        "40.0x (40.0-40.0)",
        "52%",
        "copy: 40.0 GB/s",
        "gloo failed: SIGABRT of process 1 [all_gather 1 KiB]",
    ):
        assert words in text


def test_nothing_measured_still_shows() -> None:
    assert "2 processes" in shown(summary.document([], NAMES, FACTS))


def between_hosts(**changed: Any) -> dict[str, Any]:
    hosts = {
        "processes": {"a": 1, "b": 1},
        "even": True,
        "line": {"bytes_per_second": 1.25e8, "source": "given"},
        "pairs": [{"from": "a", "to": "b", "latency": 4e-5, "bandwidth": 1e8}],
        "prescribed_algorithms": "",
    }
    return summary.document(results(), NAMES, {**FACTS, "hosts": {**hosts, **changed}})


def test_between_hosts_the_share_of_the_line_is_shown() -> None:
    found = between_hosts()
    assert found["cases"][1]["crossing_bytes"] == MIB
    assert found["cases"][1]["share_of_line"]["gloo"] == pytest.approx(MIB / 2e-3 / 1.25e8)
    assert found["cases"][2]["share_of_line"]["gloo"] is None
    text = shown(found)
    for words in ("2 hosts (a, b)", "lockstep of line", "line: 1.00 Gbit/s, as given", "40.0 µs"):
        assert words in text


def test_without_a_known_rate_or_even_hosts_there_is_no_share() -> None:
    assert between_hosts(line=None)["cases"][1]["share_of_line"]["gloo"] is None
    assert between_hosts(even=False)["cases"][1]["crossing_bytes"] is None
    assert_unsaid("of line", shown(between_hosts(line=None)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.04e-6, "7.04 µs"), (3.5e-4, "350 µs"), (0.0123, "12.3 ms"), (2.5, "2.50 s")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert table.format_seconds(seconds) == text


def test_progress_off_a_terminal_is_a_line_a_case() -> None:
    stream = io.StringIO()
    with progress.Reporter(3, stream) as reporter:
        reporter.note("starting gloo")
        for result in results():
            reporter.begin(result.case)
            reporter.end(result)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "starting gloo"
    assert lines[1] == "[1/3] all_reduce 1 KiB: lockstep 10.0 µs, gloo 400 µs"
    assert lines[3].endswith("gloo failed: SIGABRT of process 1")


def publish(capfd: pytest.CaptureFixture[str], **given: str) -> tuple[bool, str, str]:
    args = argparse.Namespace(**{"json": None, "plot": None, **given})
    part = SimpleNamespace(results=results(), document=lambda links: report())
    done = session.publish(args, [cast(session.Part, part)], None)
    out, err = capfd.readouterr()
    return done, out, err


def test_what_was_measured_is_written_and_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    done, out, err = publish(capfd, json=str(file))
    assert done
    assert "gloo / lockstep" in out
    assert err == ""
    assert json.loads(file.read_text()) == report()


@pytest.mark.full
def test_a_full_disk_loses_nothing_but_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.svg"
    picture.symlink_to("/dev/full")
    done, out, err = publish(capfd, json="/dev/full", plot=str(picture))
    assert not done
    assert "gloo / lockstep" in out
    assert err.splitlines() == [
        f"lockstep bench: cannot write {name}: No space left on device"
        for name in ("/dev/full", str(picture))
    ]


def test_an_output_that_is_full_is_reported_once(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    program = (
        "import sys, test_report as t; from lockstep.bench import session\n"
        "args = t.argparse.Namespace(json=sys.argv[1], plot=None)\n"
        "part = t.SimpleNamespace(results=t.results(), document=lambda links: t.report())\n"
        "sys.exit(0 if session.publish(args, [part], None) else 1)\n"
    )
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=Path(__file__).parent,
        )
    assert ended.stderr == (
        "lockstep bench: cannot write standard output: No space left on device\n"
    )
    assert ended.returncode == 1
    assert json.loads(file.read_text()) == report()


@pytest.mark.full
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_a_picture(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"bench.{ending}"
    plot.save(report(), str(path))
    head = path.read_bytes()[:300]
    assert head.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in head


def test_every_implementation_has_its_look() -> None:
    assert plot.STYLES.keys() == set(IMPLEMENTATIONS)


def test_a_missing_matplotlib_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'lockstep-jax[bench]'" in (plot.missing() or "")
