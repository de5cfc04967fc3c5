"""docs/design/locks.md has a row for each lock of the engine, and none for a lock that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "native"
PAGE = ROOT / "docs" / "design" / "locks.md"
ALONE = {"linalg", "nccl", "mpi_passthrough"}
"""Libraries of their own: a sentence of the page names their locks."""
_LOCK = re.compile(
    r"^\s*(?:mutable |static )*(?:std::\w*mutex|std::once_flag|OwnedMutex) (\w+)[;{]", re.MULTILINE
)
_ROW = re.compile(r"^\| `([\w/]+)` `(\w+)`", re.MULTILINE)


def locks_of(source: str) -> list[str]:
    return _LOCK.findall(source)


def test_the_page_has_the_locks_of_the_engine() -> None:
    found = {
        (str(path.relative_to(NATIVE).with_suffix("")), name)
        for path in NATIVE.rglob("*")
        if path.suffix in {".cc", ".h"}
        and path.relative_to(NATIVE).parts[0] not in ALONE | {"tests"}
        for name in locks_of(path.read_text())
    }
    # The mutex inside of OwnedMutex, and the flags of things that are made once and lock nothing.
    found -= {("control/network/progress_thread", "mutex_"), ("api/python", "once")}
    assert found == set(_ROW.findall(PAGE.read_text()))


def test_a_new_lock_is_found() -> None:
    source = (
        "  mutable std::mutex a_;  // guards b\n  static std::once_flag once;\n  OwnedMutex c_;\n"
    )
    assert locks_of(source + "  std::lock_guard lock(a_);\n") == ["a_", "once", "c_"]


def test_libraries_of_their_own_are_named() -> None:
    page = PAGE.read_text()
    for folder in ALONE:
        for path in (NATIVE / folder).rglob("*"):
            if path.suffix in {".cc", ".h"} and locks_of(path.read_text()):
                assert f"`{path.relative_to(NATIVE).with_suffix('')}`" in page, path
