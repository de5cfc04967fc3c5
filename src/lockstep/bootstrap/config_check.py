"""Do all processes run the same thing? Compares their settings and shows the differences.

Pure: `lockstep.bootstrap.agreement` gathers the facts and exchanges them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep._errors import DisagreementError
from lockstep._words import grouped, processes

_MAX_VALUES = 4
Settings = Mapping[str, str]
"""Fact -> value, of one process."""


def differences(facts: Sequence[Settings]) -> dict[str, list[str]]:
    """The facts in which the processes differ, each with the values of all processes."""
    names = dict.fromkeys(name for own in facts for name in own)
    values = {name: [own.get(name, "not said") for own in facts] for name in names}
    return {name: of_all for name, of_all in values.items() if len(set(of_all)) > 1}


def summary(differing: Mapping[str, Sequence[str]]) -> str:
    """``local CPU devices (1 on process 0, 4 on processes 1-3)``."""
    return " and ".join(f"{name} ({_by_value(values)})" for name, values in differing.items())


def _by_value(values: Sequence[str]) -> str:
    owners = grouped((value, process) for process, value in enumerate(values))
    parts = [f"{value} on {processes(those)}" for value, those in owners.items()]
    more = [f"{len(parts) - _MAX_VALUES} more"] if len(parts) > _MAX_VALUES else []
    return ", ".join([*parts[:_MAX_VALUES], *more])


def check(labels: Sequence[str], facts: Sequence[Settings]) -> None:
    """Raises `DisagreementError` with a table when the processes differ in any fact."""
    values = differences(facts)
    differing = list(values)
    if not differing:
        return
    raise DisagreementError(
        f"the processes of this job differ in {', '.join(differing)}:\n\n"
        + _table(["process", *differing], [labels, *(values[name] for name in differing)])
        + "\n\nAll processes must run the same versions with the same settings. Usual causes: "
        "another Python environment on one host, a variable (JAX_ENABLE_X64, JAX_PLATFORMS, "
        "XLA_FLAGS) that is set for some processes only, hosts with different devices."
    )


def _table(header: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, [name, *column])) for name, column in zip(header, columns, strict=True)]
    rows = [header, ["-" * width for width in widths], *zip(*columns, strict=True)]
    padded = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {'  '.join(cells).rstrip()}" for cells in padded)
