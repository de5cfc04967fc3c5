"""The report as lines and as JSON, and the command for real."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from lockstep._finding import STATUSES, ok, problem, warning, worst
from lockstep.doctor import report
from processes import captured

AREAS = [
    ("software", [ok("jax", "0.10.2"), warning("jaxlib", "0.10.1", "pip install jaxlib")]),
    ("network", [problem("localhost", "resolves to nothing", "x" * 200)]),
]


def lines(force_terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, highlight=False, force_terminal=force_terminal)
    for area, findings in AREAS:
        report.show_area(area, findings, console)
    return stream.getvalue()


def test_the_gravest_status_counts() -> None:
    assert worst([]) == "ok"
    assert worst([ok("a", ""), warning("b", "", "")]) == "warning"
    assert worst([problem("a", "", ""), warning("b", "", "")]) == "problem"


def test_a_mend_is_one_line_whatever_the_width() -> None:
    assert f"fix: {'x' * 200}\n" in lines()


def test_lines_say_status_name_and_found() -> None:
    text = lines()
    assert "ok       jax" in text
    assert "warning  jaxlib" in text
    assert "problem  localhost" in text


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in lines()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in lines(force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in lines(force_terminal=True)


def test_the_last_line_counts_and_concludes() -> None:
    everything = [finding for _, findings in AREAS for finding in findings]
    assert report.summary(everything) == "1 ok, 1 warning, 1 problem: fix the problems first"
    assert report.summary(everything[:2]) == "1 ok, 1 warning, 0 problems: Lockstep works here"


def test_the_document() -> None:
    found = report.document(AREAS)
    assert found["schema"] == "lockstep.doctor/1"
    assert found["status"] == "problem"
    assert found["checks"][1] == {
        "area": "software",
        "name": "jaxlib",
        "status": "warning",
        "found": "0.10.1",
        "fix": "pip install jaxlib",
    }


def test_the_command_finds_this_machine_fit() -> None:
    done = captured([sys.executable, "-m", "lockstep", "doctor", "--json"], timeout=120)
    found = json.loads(done.stdout)
    problems = [check for check in found["checks"] if check["status"] == "problem"]
    assert problems == []
    assert done.returncode == 0
    assert {check["area"] for check in found["checks"]} >= {"software", "engine", "machine"}
    for check in found["checks"]:
        assert set(check) == {"area", "name", "status", "found", "fix"}
        assert check["status"] in STATUSES
        assert bool(check["fix"]) == (check["status"] != "ok")
    collective = next(check for check in found["checks"] if check["name"] == "a collective")
    assert "through the engine" in collective["found"]
