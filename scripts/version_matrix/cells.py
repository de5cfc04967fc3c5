"""One cell of the matrix: the cases of one Python and one jax, run by one pytest."""

from __future__ import annotations

import dataclasses
import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from version_matrix.environments import FOLDER, Failed, run

CELL_SECONDS = 2400
"""Of all cases of a cell: a bound for hangs. Each case has the deadline of pytest's `timeout`."""
_NOT_OURS = ("LOCKSTEP_", "JAX_", "XLA_", "PYTEST_", "PYTHON", "MPITRAMPOLINE_", "VIRTUAL_ENV")


@dataclasses.dataclass(frozen=True)
class Ran:
    """What became of the cases of a group: how many passed, and why the others did not."""

    passed: int
    failures: tuple[str, ...]


def run_cell(python: Path, name: str, groups: Mapping[str, Sequence[str]]) -> dict[str, Ran]:
    """Runs the cases of all groups; what pytest said lies in build/versions/NAME.log."""
    report, log = FOLDER / f"{name}.xml", FOLDER / f"{name}.log"
    report.unlink(missing_ok=True)
    cases = [case for listed in groups.values() for case in listed]
    # The slow ones of the suite are among the cases.
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}
    try:
        said = run([*command, *cases], CELL_SECONDS, env=environ).stdout
        log.write_text(said)
        why = (said.strip().splitlines() or ["pytest says nothing"])[-1]
    except Failed as error:
        why = str(error)
    outcomes = read(report.read_text()) if report.exists() else {}
    return {group: judge(listed, outcomes, why) for group, listed in groups.items()}


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
