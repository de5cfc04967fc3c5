"""The page on NetKet: its two commands, in an environment with the releases that the page names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from page_commands import ROOT, commands, missing, output_of
from page_environments import commands_of

PAGE = (ROOT / "docs" / "tutorials" / "netket.md").read_text()
SECONDS = 300


@pytest.fixture(scope="module")
def bin() -> Path:
    """The commands of an environment with this Lockstep, and what the page says it was run with.

    NetKet is no dependency of the suite: it brings 40 packages, and bounds of its own on them.
    """
    installed = re.search(r"^    pip install (netket==\S+)$", PAGE, re.M)
    jax = re.search(r"with NetKet \S+, jax (\S+)\n", PAGE)
    assert installed, "the page does not say which NetKet"
    assert jax, "the page does not say which jax"
    return commands_of(installed[1], f"jax=={jax[1]}", f"jaxlib=={jax[1]}")


@pytest.mark.full
@pytest.mark.timeout(900)  # the first run installs NetKet
def test_the_first_command_prints_what_the_page_shows(bin: Path, tmp_path: Path) -> None:
    command, _ = commands(PAGE)
    output = output_of(command.line, tmp_path, SECONDS, bin)
    assert missing(command.shown, output) == [], output
    energy, error = map(float, re.findall(r"at the end: (\S+) ± (\S+) ", output)[0])
    [exact] = map(float, re.findall(r"exact: (\S+)", output))
    assert abs(energy - exact) < 5 * error + 1e-3, output  # the ansatz itself is off by 1e-4


@pytest.mark.full
@pytest.mark.timeout(900)
def test_stochastic_reconfiguration_is_the_same_with_every_solver(
    bin: Path, tmp_path: Path
) -> None:
    """With ours, and with NetKet's own two, unedited, over `lockstep.linalg`."""
    _, command = commands(PAGE)
    output = output_of(command.line, tmp_path, SECONDS, bin)
    assert missing(command.shown, output) == [], output
    assert output.count("the same energies as pinv_smooth: True") == 4, output
