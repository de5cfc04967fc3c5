"""scripts/listings.py: pages have the programs that they show in themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

import listings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_every_listing_is_the_file_that_it_shows() -> None:
    shown = {page.name: listings.files(page.read_text()) for page in PAGES}
    assert sum(map(len, shown.values())) > 25
    assert [
        page.name for page in PAGES if listings.current(page.read_text()) != page.read_text()
    ] == []


def test_no_page_includes_a_program_from_elsewhere() -> None:
    including = {page.name for page in PAGES if '--8<-- "' in page.read_text()}
    assert including == {"contributing.md", "changelog.md"}, "GitHub shows the line, not the file"


def test_a_listing_of_some_lines() -> None:
    [first, second, *_] = (ROOT / "mkdocs.yml").read_text().splitlines(keepends=True)
    page = "Text.\n\n<!-- listing: mkdocs.yml:{} -->\n```yaml\nold\n```\n\nMore.\n"
    for lines, body in (("1:2", first + second), ("2:2", second)):
        text = page.format(lines)
        assert listings.current(text) == text.replace("old\n", body)


def test_a_comment_without_a_listing_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 comments of listings, 0 listings"):
        listings.files("<!-- listing: mkdocs.yml -->\n\n```yaml\n```\n")
