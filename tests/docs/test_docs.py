"""The documentation names what exists: public names, variables, examples, pages."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import tomllib

import pytest

import lockstep
from lockstep._config import Config
from lockstep.launch import options

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    documented = set(re.findall(r"^::: lockstep\.(\w+)$", (REFERENCE / "api.md").read_text(), re.M))
    other_pages = {"__version__", "data", "linalg"}
    assert documented == set(dir(lockstep)) - other_pages


def test_every_variable_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(LOCKSTEP_\w+)` \|", (REFERENCE / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(f.metadata["name"] for f in dataclasses.fields(Config))


def test_every_example_is_shown_and_in_the_index() -> None:
    examples = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert set(examples) <= set(re.findall(r'--8<-- "examples/(\w+\.py)', text))
    index = re.findall(r"^\| \[(\w+\.py)\]", (DOCS / "examples.md").read_text(), re.M)
    assert sorted(index) == examples


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = re.findall(r"([\w/-]+\.md)", navigation)
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))


def test_every_extra_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    page = (DOCS / "design" / "dependencies.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.M)) == sorted(extras)


@pytest.mark.parametrize(
    ("command", "parser"), [("run", options.run_parser()), ("worker", options.worker_parser())]
)
def test_the_table_of_options_has_those_of_the_command_and_no_other(
    command: str, parser: argparse.ArgumentParser
) -> None:
    page = (REFERENCE / "run.md").read_text()
    rows = re.findall(r"^\| `(-[\w-]+)[^`]*` \| (\w+) \|", page, re.M)
    listed = {name for name, of in rows if of in (command, "both")}
    known = [set(action.option_strings) - {"-h", "--help"} for action in parser._actions]
    assert [names for names in known if names and not names & listed] == []
    assert listed <= set.union(*known)


def test_the_layout_names_every_folder_of_the_package() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text()
    package = pathlib.Path(lockstep.__file__).parent
    folders = [path.parent.name for path in package.glob("*/__init__.py")]
    assert "linalg" in folders
    for folder in folders:
        assert re.search(rf"^      .*\b{folder}/", layout, re.M), folder
