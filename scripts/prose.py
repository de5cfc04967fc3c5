"""Finds words in the documentation that this project does not use, with the word to write instead.

    python scripts/prose.py        (make lint calls it, beside codespell)

Listings and inline code are left out: they show what a program prints. docs/reference/glossary.md
has the words that are used.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTEAD = {
    "keeper": "agent",
    "papers": "artifacts",
    "doorbell": "wake-up",
    "poison(s|ed)?": "abort",
    "herald": "abort listener",
    "cut off": "unreachable",
    "under way": "in flight",
    "for ever": "forever",
    "to have it off": "to disable it",
    "mend(s|ed)?": "fix",
    "crowded": "oversubscribed",
    "glances?": "scan",
    "processes part(ed)?": "processes diverge",
    "whoever": "the process that, the program that",
    "nobody": "no process, no program",
    "utili[sz]e[sd]?": "use",
    "leverage[sd]?": "use",
    "in order to": "to",
}
_CODE = re.compile(r"^```.*?^```$|^ {4,}[^\n]*$|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)
_WORDS = re.compile(r"\b(" + "|".join(INSTEAD) + r")\b", re.IGNORECASE)


def findings(text: str) -> list[tuple[int, str, str]]:
    """Line, word, and what to write instead, for each word that is not to be used."""
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    return [
        (prose.count("\n", 0, found.start()) + 1, found[0], _instead(found[0]))
        for found in _WORDS.finditer(prose)
    ]


def _instead(word: str) -> str:
    return next(new for old, new in INSTEAD.items() if re.fullmatch(old, word, re.IGNORECASE))


def main() -> int:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    lines = [
        f"{page.relative_to(ROOT)}:{line}: {word!r}: write {instead}"
        for page in sorted(pages)
        for line, word, instead in findings(page.read_text())
    ]
    print("\n".join(lines) or f"{len(pages)} pages: no word that is not to be used")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
