"""docs/how-to/libraries.md: its programs, with the releases that the page names.

Each program runs on several processes and on one with as many devices, and prints the same numbers.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from page_commands import ROOT, commands, missing, output_of
from page_environments import HERE, commands_of

DOCS = ROOT / "docs"
PAGE = (DOCS / "how-to" / "libraries.md").read_text()
ROWS = dict(re.findall(r"^\| (\w+)[^|]* \| (\d[\d.]+) \|", PAGE, re.M))
INSTALLED = [line.split() for line in re.findall(r"^    pip install (.*)$", PAGE, re.M)]
WITH = re.findall(r"jax (\d[\d.]*\d) and Python (\d\.\d+)", PAGE)
RELEASES = {python: (jax, *each) for (jax, python), each in zip(WITH, INSTALLED, strict=True)}
"""What was installed together, by the version of Python."""
PACKAGES = {"orbax": "orbax-checkpoint"}
OWN_PAGES = {"NetKet": "tutorials/netket.md", "Ray": "how-to/ray.md"}
RECIPES = [re.split(r"[. ]", command.line)[-2] for command in commands(PAGE)]
OTHERS = ("examples/flax_digits.py --folder digits --epochs 2", "lineax_solve.py")
"""Programs of other pages to which the table points."""
SECONDS = 500
"""NumPyro's many small steps took more than five minutes beside twenty busy programs."""

pytestmark = [pytest.mark.timeout(1500)]  # the first run installs the libraries


@pytest.fixture(scope="module", params=RELEASES)
def bin(request: pytest.FixtureRequest) -> Path:
    jax, *packages = RELEASES[request.param]
    # The first row is that of the suite's own jax, with whatever Python runs the suite.
    version = HERE if request.param == WITH[0][1] else request.param
    named = (f"jax=={jax}", f"jaxlib=={jax}", "scikit-learn")
    return commands_of(*packages, *named, version=version)


def numbers(output: str) -> list[float]:
    """All numbers of the lines of process 0."""
    lines = re.findall(r"^\[0\] (.*)$", re.sub(r"part \d of \d", "", output), re.M)
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", "\n".join(lines))]


def test_the_table_has_the_versions_that_are_installed() -> None:
    assert len(ROWS) == len(re.findall(r"^\| .*\) \|$", PAGE, re.M))
    together = {name.lower(): version for name, version in ROWS.items() if name not in OWN_PAGES}
    wanted = {f"{PACKAGES.get(name, name)}=={version}" for name, version in together.items()}
    assert wanted == set(INSTALLED[0])
    for others in INSTALLED[1:]:
        assert {each.split("==")[0] for each in others} == {w.split("==")[0] for w in wanted}


@pytest.mark.parametrize("library", OWN_PAGES)
def test_the_table_has_the_version_of_a_page(library: str) -> None:
    page = (DOCS / OWN_PAGES[library]).read_text()
    assert re.findall(rf"with {library} (\d[\d.]*\d)", page)[0] == ROWS[library]


def test_the_tutorial_on_flax_names_the_same_versions() -> None:
    [used] = re.findall(r"(Flax .*) were used", (DOCS / "tutorials" / "flax.md").read_text())
    said = dict(re.findall(r"(\w+) (\d[\d.]+)", used))
    assert said == {name: ROWS[name] for name in ("Flax", "Optax", "Orbax")}


@pytest.mark.full
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_program_gives_the_numbers_of_one_process(recipe: str, bin: Path, tmp_path: Path) -> None:
    [command] = [each for each in commands(PAGE) if f" {recipe}.py" in each.line]
    found = {}
    for layout in ("-n 2 -d 2", "-n 1 -d 4"):
        folder = tmp_path / layout.replace(" ", "")
        folder.mkdir()
        output = output_of(command.line.replace("-n 2 -d 2", layout), folder, SECONDS, bin)
        if layout in command.line:
            assert missing(command.shown, output) == [], output
        found[layout] = numbers(output)
        assert found[layout] == pytest.approx(numbers("\n".join(command.shown)), rel=0.1), output
    assert found["-n 2 -d 2"] == pytest.approx(found["-n 1 -d 4"], rel=0.005)


@pytest.mark.full
def test_keras_with_an_axis_that_spans_processes(bin: Path, tmp_path: Path) -> None:
    [command] = [each for each in commands(PAGE) if "keras_fit" in each.line]
    output = output_of(command.line.replace("-n 2 -d 2", "-n 4 -d 1"), tmp_path, SECONDS, bin)
    [after] = {line.partition(": ")[2] for line in command.shown}
    said = re.findall(r"^\[(\d)\] part (\d) of 2: (.*)$", output, re.M)
    copies = [("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")]
    assert sorted(said) == [(rank, part, after) for rank, part in copies], output


@pytest.mark.full
def test_check_replicas_finds_other_rows_for_the_same_copy(bin: Path, tmp_path: Path) -> None:
    program = (DOCS / "how-to" / "keras_fit.py").read_text()
    turned = program.replace(
        "\nhistory =", "\nown = own[:: 1 - 2 * distribution._process_id]\nhistory ="
    )
    assert turned != program
    (tmp_path / "turned.py").write_text(turned)
    line = "lockstep run -n 2 -d 1 --check-replicas 1 turned.py"
    output = output_of(line, tmp_path, SECONDS, bin)
    assert re.search(r"argument data\[0\] .* is not the same on processes 0-1", output), output


@pytest.mark.full
@pytest.mark.parametrize("program", OTHERS)
def test_a_program_of_another_page_runs_with_these_versions(
    program: str, bin: Path, tmp_path: Path
) -> None:
    line = f"lockstep run -n 2 -d 2 {program} && echo all is well"
    assert output_of(line, tmp_path, SECONDS, bin).endswith("all is well\n")
