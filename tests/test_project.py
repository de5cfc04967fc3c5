"""What is said of the project in several places is the same: versions, Pythons, addresses."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import lockstep

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TESTS = (ROOT / ".github" / "workflows" / "tests.yml").read_text()


def test_the_citation_is_of_this_version() -> None:
    citation = dict(re.findall(r"^([\w-]+): *(.*)$", (ROOT / "CITATION.cff").read_text(), re.M))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == lockstep.__version__
    assert citation["license"] == PYPROJECT["project"]["license"]


def test_the_changes_have_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert lockstep.__version__ in headings[0]


def test_the_first_version_lists_what_there_is_and_no_repairs() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text().partition("\n## Unreleased: 0.1.0\n")[2]
    assert len(re.findall(r"^### ", changes, re.M)) > 10
    assert re.findall(r"\bno longer\b|\bBefore,|\bbefore this\b|[^\n]*\bwas wrong\b", changes) == []


def test_the_tested_pythons_are_those_of_the_classifiers() -> None:
    listed = re.findall(
        r"^Programming Language :: Python :: (3\.\d+)$",
        "\n".join(PYPROJECT["project"]["classifiers"]),
        re.M,
    )
    (matrix,) = re.findall(r"^ +python: (\[.*\])", TESTS, re.M)
    assert json.loads(matrix) == listed
    assert PYPROJECT["project"]["requires-python"] == f">={listed[0]}"


def test_the_oldest_jax_that_is_required_is_tested() -> None:
    (required,) = (name for name in PYPROJECT["project"]["dependencies"] if name.startswith("jax>"))
    (tested,) = re.findall(r"'jax==([\d.]+)'", TESTS)
    assert f"jax>={tested}".removesuffix(".0") == required


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_timeout_and_few_rights(path: Path) -> None:
    head, _, jobs = path.read_text().partition("\njobs:\n")
    assert "\npermissions:\n  contents: read\n" in head
    assert "\nconcurrency:\n" in head
    for job in re.split(r"^  (?=\w+:$)", jobs, flags=re.M)[1:]:
        assert re.search(r"^    timeout-minutes: \d+$", job, re.M), job


def test_the_command_that_tests_a_wheel_runs_an_example() -> None:
    commands = " ".join(PYPROJECT["tool"]["cibuildwheel"]["test-command"])
    (example,) = re.findall(r"\{project\}/(\S+)", commands)
    assert (ROOT / example).is_file()
    assert "lockstep run -n 2" in commands


def test_every_address_is_that_of_the_project() -> None:
    urls = PYPROJECT["project"]["urls"]
    places = [ROOT / name for name in ("README.md", "CITATION.cff", "SECURITY.md", "mkdocs.yml")]
    text = "".join(path.read_text() for path in [*places, *(ROOT / ".github").rglob("*.yml")])
    addresses = re.findall(r"https://(?:github\.com/[\w-]+|[\w-]+\.github\.io)/lockstep\b", text)
    assert set(addresses) == {urls["Homepage"], urls["Documentation"]}
