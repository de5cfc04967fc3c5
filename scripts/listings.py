"""Copies programs into the pages that show them, so that a page is whole wherever it is read.

    python scripts/listings.py            (make format calls it)
    python scripts/listings.py --check    (make lint: names the listings that are out of date)

A listing of a file has a comment above it. It names the file, and lines of it if not all are shown:

    <!-- listing: examples/inspect_step.py:23:54 -->
    ```python
    ...
    ```
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTING = re.compile(
    r"^(?P<head><!-- listing: (?P<file>[^\s:]+)(?::(?P<first>\d+):(?P<last>\d*))? -->\n```[^\n]*\n)"
    r"(?P<body>.*?)^```$",
    re.M | re.S,
)
COMMENT = "<!-- listing:"


def shown(file: str, first: str | None, last: str | None) -> str:
    """The lines ``first`` to ``last`` of ``file``; all of them without numbers."""
    lines = (ROOT / file).read_text().splitlines(keepends=True)
    return "".join(lines[int(first or 1) - 1 : int(last) if last else None])


def current(page: str) -> str:
    """``page`` with the files as they are now."""
    return LISTING.sub(lambda m: f"{m['head']}{shown(m['file'], m['first'], m['last'])}```", page)


def files(page: str) -> list[str]:
    """The files that ``page`` shows. Raises ValueError: a comment has no listing below it."""
    found = [match["file"] for match in LISTING.finditer(page)]
    if len(found) != page.count(COMMENT):
        raise ValueError(f"{page.count(COMMENT)} comments of listings, {len(found)} listings")
    return found


def main(check: bool) -> int:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    old, count = [], 0
    for page in pages:
        text = page.read_text()
        count += len(files(text))
        if (new := current(text)) != text:
            old.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new)
    if check and old:
        print(f"listings out of date in {', '.join(old)}: run make format")
        return 1
    print(f"{count} listings are the files that they show")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
