"""Every link of the pages leads somewhere: files, anchors, and paths of this repository on GitHub.

`make docs` checks the site too, but not README, CONTRIBUTING and the paths on GitHub.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OURS = re.compile(r"https://github\.com/lockstep-jax/lockstep/(?:blob|tree)/main/([^)#\s]+)")
_LISTING = re.compile(r"^```.*?^```$|^ {4,}[^\n]*$|`[^`\n]*`", re.M | re.S)
_LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]: (\S+)", re.M
)


def prose(text: str) -> str:
    """``text`` without listings and inline code, whose brackets are no links."""
    return _LISTING.sub(lambda found: "`" * len(found[0].splitlines()[0][:1]), text)


def links(page: Path) -> list[str]:
    text = re.sub(r"\[`[^`\n]*`\]", "[code]", page.read_text())
    return [inline or reference for inline, reference in _LINK.findall(prose(text))]


def slug(heading: str) -> str:
    """The anchor of a heading, as the site makes it (Python-Markdown's `toc`)."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    text = page.read_text()
    if included := re.findall(r'^--8<-- "([^":]+\.md)"$', text, re.M):
        text += "".join((ROOT / path).read_text() for path in included)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found = {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}
    return frozenset(found | set(re.findall(r"^::: (\S+)$", text, re.M)))


def wrong(page: Path, link: str) -> str | None:
    """What is wrong with ``link`` on ``page``; None if it leads somewhere."""
    if link.startswith(("https://", "mailto:")):
        ours = OURS.match(link)
        return f"no {ours[1]} here" if ours and not (ROOT / ours[1]).exists() else None
    if link.startswith("http:"):
        return "not https"
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{target.relative_to(ROOT)} has no heading {anchor}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    found = {link: wrong(page, link) for link in links(page)}
    assert {link: why for link, why in found.items() if why} == {}


def test_links_are_found_and_wrong_ones_are_told_apart() -> None:
    index = ROOT / "docs" / "index.md"
    assert sum(len(links(page)) for page in PAGES) > 300
    assert "tutorials/first-job.md" in links(index)
    assert "docs/img/how-it-works.svg" in links(ROOT / "README.md")
    assert wrong(index, "faq.md#why-does-it-hang") is None
    assert wrong(index, "reference/api.md#lockstep.linalg.potrs") is None
    assert wrong(index, "faq.md#why-does-it-run") == "docs/faq.md has no heading why-does-it-run"
    assert wrong(index, "no.md") == "no such file"
    assert wrong(index, "https://github.com/lockstep-jax/lockstep/blob/main/no.md")
