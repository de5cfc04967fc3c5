"""scripts/prose.py: what it finds, and what it leaves alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

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
def test_the_pages_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main() == 0
    assert " pages and docstrings, and comments: " in capsys.readouterr().out


def test_the_performance_notes_are_decisions_and_not_a_laboratory_notebook() -> None:
    page = (prose.ROOT / "docs" / "design" / "performance.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 50
    assert [cell for row in rows for cell in row if len(cell) > 180] == []
    assert "/tmp" not in page


def test_a_comment_that_continues_another_is_found() -> None:
    assert prose.bare_openers("int a;\n// And while one reads.\nint b;\n") == [(2, "And")]
    assert prose.bare_openers_of_python("a = 1\n# But not here.\n") == [(2, "But")]
