"""scripts/versions.py: what it runs where, how it judges, and what it has written into the docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lockstep._jax_compat import NEWEST_TESTED_JAX, OLDEST_JAX
from processes import captured
from support import wait_until
from version_matrix import cases, environments, table
from version_matrix.cells import Ran, judge, read

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_c[1, 2]" />
<testcase classname="tests.a.test_b" name="test_c[3]">
<failure message="no&#10; end">x</failure></testcase>
<testcase classname="tests.a.test_b" name="test_d"><skipped message="too old" /></testcase>
</testsuite></testsuites>"""


def test_the_written_table_has_the_versions_that_the_code_claims() -> None:
    rows = table.rows(PAGE.read_text())
    ran = sorted(cases.numbers(row[1]) for row in rows if row[1])
    assert ran[0][:2] == OLDEST_JAX
    assert ran[-1][:2] == NEWEST_TESTED_JAX


def test_the_written_table_has_every_listed_version_and_no_failure() -> None:
    rows = [row for row in table.rows(PAGE.read_text()) if row[1]]
    assert {row[1] for row in rows} >= set(cases.JAX)
    assert {row[0] for row in rows} >= {"3.11", "3.12", "3.13"}
    for row in rows:
        assert len(row) == 2 + len(cases.GROUPS), row
        assert all(re.fullmatch(r"ok \([1-9]\d*\)", cell) for cell in row[2:]), row


@pytest.mark.full
def test_every_case_is_there() -> None:
    listed = [case for group in cases.GROUPS.values() for case in group]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "", *listed]
    done = captured(command, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_jax_runs_and_every_python_has_its_oldest_and_newest() -> None:
    chosen = cases.choose(["3.11", "3.12", "3.13"], "0.13.0", corners=False)
    assert {jax for _, jax in chosen} == {*cases.JAX, "0.13.0"}
    of = {python: [j for p, j in chosen if p == python] for python, _ in chosen}
    assert [(of[p][0], of[p][-1]) for p in sorted(of)] == [
        ("0.8.0", "0.10.2"),
        ("0.8.0", "0.13.0"),
        ("0.8.0", "0.13.0"),
    ]


def test_the_corners_are_the_oldest_and_the_newest_of_both() -> None:
    pythons = ["3.11", "3.12", "3.13"]
    assert cases.choose(pythons, "0.13.0", corners=True) == [("3.11", "0.8.0"), ("3.13", "0.13.0")]
    for jax in ("0.8.0", "0.13.0"):
        few, all_of_them = cases.cases(jax, corners=True), cases.cases(jax, corners=False)
        for group, listed in few.items():
            assert listed, group
            assert set(listed) <= set(all_of_them[group])


def test_a_case_that_failed_was_skipped_or_did_not_run_has_failed() -> None:
    outcomes = read(REPORT)
    file = "tests/a/test_b.py::"
    assert judge([f"{file}test_c[1, 2]"], outcomes, "") == Ran(1, ())
    assert judge([f"{file}test_c"], outcomes, "") == Ran(1, ("test_c[3]: failure: no end",))
    assert judge([f"{file}test_d"], outcomes, "") == Ran(0, ("test_d: skipped: too old",))
    assert judge([f"{file}test_e"], {}, "no disk") == Ran(0, ("test_e: did not run (no disk)",))


def test_the_table_shows_what_failed_and_what_did_not_run() -> None:
    ran = {("3.11", "0.8.0"): {"a": Ran(2, ()), "b": Ran(1, ("test_c: no end",))}}
    text = table.render(ran, ["a", "b"], ["3.14"])
    assert "| 3.11 | 0.8.0 | ok (2) | **1 of 2 failed** |" in text
    assert "| 3.14 |  | not run | not run |" in text
    assert "- Python 3.11, jax 0.8.0, b: test_c: no end" in text
    page = table.replace(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", text)
    assert "old" not in page
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert table.rows(page) == [
        ["3.11", "0.8.0", "ok (2)", "**1 of 2 failed**"],
        ["3.14", "", "not run", "not run"],
    ]


def test_the_interpreter_that_runs_this_is_found_and_one_that_is_not_there_is_not() -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = environments.interpreter(here)
    assert found is not None
    assert found.exists()
    assert environments.interpreter("3.99") is None


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"sleep 100 & echo $! > {pid}; wait"
    with pytest.raises(environments.Failed, match="no end within 2 s: sh -c"):
        environments.run(["sh", "-c", program], 2)
    child = Path("/proc") / pid.read_text().strip()
    wait_until(lambda: not (child / "exe").exists(), f"{child} is gone")
