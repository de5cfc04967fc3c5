"""The words and the openings of comments that `scripts/prose.py` finds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "prose.py"


_spec = importlib.util.spec_from_file_location("prose", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(prose)


def test_a_word_that_is_not_used_is_found_outside_of_code() -> None:
    text = "One line.\nTo mend it, see `mend`.\n"
    assert prose.findings(text) == [(2, "mend", "fix")]


def test_a_comment_with_a_bare_opener_is_found() -> None:
    source = "int a;\n\n  // Of the slice of a host.\n  // Where it ends.\nint b;\n// Not so.\n"
    assert prose.bare_openers(source) == [(3, "Of"), (6, "Not")]


def test_other_comments_are_no_findings() -> None:
    source = (
        "// A host's slice.\n// Of it, the rest.\nint c;  // of each process\n// Often called.\n"
    )
    assert prose.bare_openers(source) == []


def test_a_comment_or_docstring_of_python_with_a_bare_opener_is_found() -> None:
    source = '''# Of all devices.
# By the way it goes on.
a = 1  # by name
"""Of a host."""
def f():
    """By its name."""
    # Not so.
    return "Of text"
'''
    found = [(1, "Of"), (4, "Of"), (6, "By"), (7, "Not")]
    assert prose.bare_openers_of_python(source) == found


def test_the_package_has_none() -> None:
    assert list(prose.python_findings()) == []


def test_the_engine_has_none() -> None:
    assert list(prose.native_findings()) == []
