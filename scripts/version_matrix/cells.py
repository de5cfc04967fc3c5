"""One row of the matrix: the cases of one Python and one jax, run by one pytest for each group."""

from __future__ import annotations

import dataclasses
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from version_matrix.environments import FOLDER, Failed, run

GROUP_SECONDS = 1200
"""Bounds hangs of a whole group of cases. Each case has the deadline of pytest's `timeout`."""
_NOT_OURS = ("LOCKSTEP_", "JAX_", "XLA_", "PYTEST_", "PYTHON", "MPITRAMPOLINE_", "VIRTUAL_ENV")


@dataclasses.dataclass(frozen=True)
class Ran:
    """What became of the cases of a group: how many passed, and why the others did not."""

    passed: int
    failures: tuple[str, ...]


def run_cell(python: Path, name: str, groups: Mapping[str, Sequence[str]]) -> dict[str, Ran]:
    """Runs the groups one after the other, so that a crash of pytest takes one of them along."""
    return {group: _run_group(python, f"{name}-{group}", groups[group]) for group in groups}


def _run_group(python: Path, name: str, cases: Sequence[str]) -> Ran:
    """What pytest says lies in build/versions/NAME.log."""
    name = re.sub(r"[^\w.]+", "-", name)
    report, log = FOLDER / f"{name}.xml", FOLDER / f"{name}.log"
    report.unlink(missing_ok=True)
    # The slow ones of the suite are among the cases.
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}
    environ["TESTS_WITHOUT_FORKS"] = "1"  # each process imports this jax
    try:
        done = run([*command, *cases], GROUP_SECONDS, env=environ)
        log.write_text(done.stdout)
        said = done.stdout.strip().splitlines() or ["pytest wrote nothing"]
        ended = f"pytest was killed by signal {-done.returncode}"
        why = ended if done.returncode < 0 else said[-1]
    except Failed as error:
        why = str(error)
    outcomes = read(report.read_text()) if report.exists() else {}
    return judge(cases, outcomes, why)


def read(report: str) -> dict[str, str]:
    """Item -> what is wrong with it, "" for one that passed, from a report in JUnit's XML."""
    outcomes = {}
    for case in ET.fromstring(report).iter("testcase"):
        item = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        wrong = [f"{child.tag}: {child.get('message', '')}" for child in case if _is_wrong(child)]
        outcomes[item] = " ".join("; ".join(wrong).split())
    return outcomes


def _is_wrong(child: ET.Element) -> bool:
    return child.tag in ("failure", "error", "skipped")


def judge(cases: Sequence[str], outcomes: Mapping[str, str], why: str) -> Ran:
    """What has no outcome has not run, and has failed; ``why`` is pytest's last line."""
    passed, failures = 0, []
    for case in cases:
        found = [item for item in outcomes if item == case or item.startswith(f"{case}[")]
        if not found:
            failures.append(f"{case.rpartition('::')[2]}: did not run ({why})")
        for item in found:
            if outcomes[item]:
                failures.append(f"{item.rpartition('::')[2]}: {outcomes[item][:200]}")
            else:
                passed += 1
    return Ran(passed, tuple(failures))
