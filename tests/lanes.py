"""Which cases of a test run in ``make test``; the others are marked `full`, for ``make full``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def full(*values: Any, id: str | None = None) -> Any:
    """A case of `pytest.mark.parametrize` that runs in ``make full`` only."""
    return pytest.param(*values, id=id, marks=pytest.mark.full)


def sample(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    *places: int,
    ids: Sequence[str] | None = None,
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` where only the cases at ``places`` run in ``make test``.

    Of a test with several such decorators, ``make test`` runs the combinations of what each chose.
    """
    marked = [
        case if place in places else _in_full(case, isinstance(names, str))
        for place, case in enumerate(cases)
    ]
    assert set(places) <= set(range(len(marked))), "there is no such case"
    return pytest.mark.parametrize(names, marked, ids=ids)


def _in_full(case: Any, one_name: bool) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.full])
    return full(case) if one_name else full(*case)
