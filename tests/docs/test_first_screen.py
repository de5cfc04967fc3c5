"""The first screen: what Lockstep is for, two commands, one number with a link, the faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "The training by itself", "docs/index.md": "## See it run"}
"""The first pages, and the words after their first screen."""
NUMBER = r"\b\d[\d.]* (?:times|ms\b|us\b|of\b)|\b\d[\d.]*%"


def first_screen(page: str) -> str:
    return (ROOT / page).read_text().partition(PAGES[page])[0]


@pytest.mark.parametrize("page", PAGES)
def test_the_first_screen_has_what_it_is_for_two_commands_and_one_number(page: str) -> None:
    text = first_screen(page)
    assert "CPU devices" in text
    assert "On GPUs NCCL moves the data" in text
    assert re.findall(r"^    (\S.*)$", text, re.M) == ["make demo", "make test"]
    linked = re.findall(r"\[([^\]]*)\]\(\S+\)", text)
    assert len(re.findall(NUMBER, text)) == 1
    assert len([link for link in linked if re.search(NUMBER, link)]) == 1


@pytest.mark.parametrize("page", PAGES)
def test_what_is_said_about_faults_is_what_was_measured(page: str) -> None:
    text = " ".join(first_screen(page).split())
    assert "On stock JAX over gloo" in text
    assert "Other libraries" not in text
    assert re.search(r"most of the \[faults that were tried\]\(\S*faults\.md#compared", text)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs" / "reference" / "faults.md").read_text().splitlines()
        if line.count("|") == 6 and line[2] != "-"
    ]
    header, *faults = rows[next(i for i, row in enumerate(rows) if "stock JAX, gloo" in row) :]
    stock = [row[header.index("stock JAX, gloo")] for row in faults]
    tried = [result for result in stock if result != "-"]
    silent = [result for result in tried if result.startswith(("**hang**", "**wrong number**"))]
    assert len(tried) > 20
    assert len(silent) > len(tried) / 2
    ours = [row[header.index("Lockstep")] for row in faults]
    assert len([result for result in ours if "**" in result]) == 1, "all but one are reported"
