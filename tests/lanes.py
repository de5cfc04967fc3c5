"""Which tests run where: in ``make test`` or in ``make full``, and on which systems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def is_make_test(config: pytest.Config) -> bool:
    """Whether the tests marked ``full`` are left out, as by default."""
    return "not full" in config.option.markexpr


def full(*values: Any, id: str | None = None, marks: Iterable[pytest.MarkDecorator] = ()) -> Any:
    """A case of `pytest.mark.parametrize` that runs in ``make full`` only."""
    return pytest.param(*values, id=id, marks=[*marks, pytest.mark.full])


def sample(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    *places: int,
    ids: Sequence[str] | None = None,
    indirect: bool = False,
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` where only the cases at ``places`` run in ``make test``.

    Of a test with several such decorators, ``make test`` runs the combinations of what each chose.
    """
    marked = [
        case if place in places else _in_full(case, isinstance(names, str))
        for place, case in enumerate(cases)
    ]
    assert set(places) <= set(range(len(marked))), "there is no such case"
    return pytest.mark.parametrize(names, marked, ids=ids, indirect=indirect)


def _in_full(case: Any, one_name: bool) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.full])
    return full(case) if one_name else full(*case)


def needs(there: bool, reason: str) -> pytest.MarkDecorator:
    """Skips a test where the system lacks something; in CI as root it must be there."""
    return pytest.mark.skipif(not there and not must_run(), reason=reason)


def must_run() -> bool:
    """Whether a test that finds its system unfit has to fail: in CI, whose root may do it all."""
    return bool(os.environ.get("CI")) and os.getuid() == 0
