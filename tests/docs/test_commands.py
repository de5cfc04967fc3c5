"""Each command in a console block of a page is run, and prints what the page shows under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanes import full
from page_commands import ROOT, Command, commands, missing, output_of, same_words

DOCS = ROOT / "docs"
SECONDS = 300
ELSEWHERE = {
    "NETKET_SHARDING=1 lockstep run -n 2 -d 2 --auto-init netket_ising.py": "test_netket.py",
    "NETKET_SHARDING=1 lockstep run -n 2 -d 2 --auto-init netket_solvers.py": "test_netket.py",
    **{
        f"lockstep run -n 2 -d 2 {name}.py": "test_libraries.py"
        for name in ("numpyro_hmc", "keras_fit", "diffrax_fit", "optimistix_fit")
    },
    "lockstep report": "tests/report/test_cli.py",
    "lockstep doctor": "tests/doctor",
    "lockstep run -n 2 -d 2 --stall-warning 5 slow.py": "tests/watchdog, for it never ends",
}
"""Commands of console blocks that run elsewhere: in the tests that are named."""
CASES = [
    (str(page.relative_to(ROOT)), command)
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    for command in commands(page.read_text())
]
TO_RUN = [case for case in CASES if case[1].line not in ELSEWHERE]


def test_pages_have_console_blocks_and_every_exception_is_one() -> None:
    assert len(TO_RUN) > 15
    assert set(ELSEWHERE) <= {command.line for _, command in CASES}


@pytest.mark.parametrize(
    ("page", "command"),
    [full(page, command, id=f"{page}: {command.line}") for page, command in TO_RUN],
)
def test_a_command_prints_what_its_page_shows(page: str, command: Command, tmp_path: Path) -> None:
    output = output_of(command.line, tmp_path, SECONDS)
    assert missing(command.shown, output) == [], f"{page}\n$ {command.line}\n{output}"


def test_what_differs_from_run_to_run_is_left_out() -> None:
    one = "[0] lockstep: process 1 (pid 18050 on vm) waits; /home/me/slow.py:20 in sum"
    other = "[0] lockstep: process 1 (pid 7 on node-3) waits; /tmp/x/slow.py:20 in sum"
    assert same_words(one) == same_words(other)
    assert missing((one, "..."), other) == []
    assert missing((one,), other.replace("waits", "ended")) == [one]
