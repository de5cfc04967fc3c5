"""``lockstep bench --calibrate``: the measured times as the costs that `lockstep inspect` uses."""

from __future__ import annotations

import dataclasses
import platform
import statistics
import sys
from collections.abc import Sequence

from lockstep._errors import ConfigError
from lockstep.bench.cases import HLO_NAMES
from lockstep.bench.runner import CaseResult
from lockstep.inspection import cost_model


def write(results: Sequence[CaseResult], implementation: str, between: bool = False) -> bool:
    """Writes the user's file and prints where it is; False if there is nothing to write.

    ``between``: the costs are those between hosts, and the file keeps those within a host.
    """
    cases = [
        (HLO_NAMES[result.case.op], result.case.bytes, seconds)
        for result in results
        if (seconds := _undisturbed(result, implementation)) is not None
    ]
    if not cases:
        print("lockstep bench: nothing was measured, so no costs are written", file=sys.stderr)
        return False
    ranks = results[0].case.ranks
    source = f"{implementation} on {platform.node()}, groups of {ranks} devices"
    model = cost_model.fit(cases, ranks, source)
    try:
        known = cost_model.load()
    except ConfigError:  # an unreadable file is replaced
        known = None
    if between:
        model = dataclasses.replace(
            model, within=known.within if known else {}, between=model.within
        )
    elif known:
        model = dataclasses.replace(model, between=known.between)
    try:
        path = cost_model.save(model)
    except OSError as error:
        print(f"lockstep bench: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return False
    text = f"costs written to {path}"
    if model.median_error is not None and model.worst_error is not None:
        text += (
            f"; predicted from its neighbours, a size is off by {model.median_error:.0%} in the "
            f"middle and {model.worst_error:.0%} at worst"
        )
    print(text, file=sys.stderr)
    return True


def _undisturbed(result: CaseResult, implementation: str) -> float | None:
    """The fastest block's median: what else runs on the machine only makes a collective slower."""
    measured = result.by_implementation[implementation]
    blocks = [statistics.median(block) for block in measured.blocks if block]
    return min(blocks) if measured.status == "ok" and blocks else None
