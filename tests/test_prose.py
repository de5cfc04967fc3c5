"""What `scripts/prose.py` finds, words and openings of comments, and what it leaves alone."""

from __future__ import annotations

import pytest

import prose

PAGE = """# Title

The keeper is
under way, and `nobody` is code.

    nobody

```text
nobody
```

Whoever recommends it, [link](nobody.md).
"""


def test_words_are_found_outside_of_listings_with_their_lines() -> None:
    assert prose.findings(PAGE) == [
        (3, "keeper", "agent"),
        (4, "under way", "in flight"),
        (12, "Whoever", "the process that, the program that"),
    ]


def test_docstrings_are_read_too() -> None:
    source = '"""A keeper."""\n\n\ndef run():\n    """Runs."""\n'
    assert prose.docstrings(source) == [(1, "A keeper."), (5, "Runs.")]


@pytest.mark.full
def test_the_pages_the_package_and_the_engine_have_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert prose.main() == 0
    assert " pages and docstrings, and comments: " in capsys.readouterr().out


def test_the_performance_notes_are_decisions_and_not_a_laboratory_notebook() -> None:
    page = (prose.ROOT / "docs" / "design" / "performance.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 50
    assert [cell for row in rows for cell in row if len(cell) > 180] == []
    assert "/tmp" not in page


def test_a_comment_with_a_bare_opener_is_found() -> None:
    source = "int a;\n\n  // Of the slice of a host.\n  // Where it ends.\nint b;\n// Not so.\n"
    assert prose.bare_openers(source) == [(3, "Of"), (6, "Not")]
    assert prose.bare_openers("// And while one reads.\nint b;\n// It waits.\n") == [
        (1, "And"),
        (3, "It"),
    ]


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
# But not here.
'''
    found = [(1, "Of"), (4, "Of"), (6, "By"), (7, "Not"), (9, "But")]
    assert prose.bare_openers_of_python(source) == found
