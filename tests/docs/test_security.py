"""docs/security.md: each claim names a test, and the tests exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| |")
]
ID = re.compile(r"`((?:native/)?tests/[\w/]+\.(?:py|cc))::(\w+)`")


@functools.cache
def names_in(path: str) -> set[str]:
    text = (ROOT / path).read_text()
    if path.endswith(".cc"):
        return set(re.findall(r"^\w*TEST\((\w+)\)", text, re.M))
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_claim_has_tests_that_exist(row: list[str]) -> None:
    _, claim, tests = row
    assert claim.endswith(".")
    found = ID.findall(tests)
    assert found, f"no test of: {claim}"
    assert ID.sub("", tests).strip(", ") == "", "more than the ids of tests"
    for path, name in found:
        assert name in names_in(path), f"{path} has no test {name}"


def test_the_page_has_claims() -> None:
    assert len(ROWS) > 20
    assert len(ID.findall(PAGE)) == sum(len(ID.findall(row[2])) for row in ROWS)
