"""How a check of the doctor judges made-up facts."""

from __future__ import annotations

from lockstep._finding import OK, Finding


def assert_judged(finding: Finding, status: str, found: str = "", fix: str = "") -> None:
    """``finding`` has this status and these words; whatever is not ok has a fix."""
    assert finding.status == status, finding
    assert found in finding.found, finding
    assert fix in finding.fix, finding
    assert bool(finding.fix) == (status != OK), finding
