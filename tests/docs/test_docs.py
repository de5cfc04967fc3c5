"""The documentation names what exists: public names, variables, examples, pages."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import pathlib
import re

import pytest

import lockstep
from lockstep import cli
from lockstep._config import Config
from lockstep.launch import options

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def public_names() -> set[str]:
    """Of lockstep and its packages for users.

    The modules of linalg are private by their names, but for those that need an extra. These are
    read and not imported.
    """
    found = {f"lockstep.{name}" for name in set(dir(lockstep)) - {"__version__", "data", "linalg"}}
    found |= {f"lockstep.data.{name}" for name in lockstep.data.__all__}
    solvers = vars(importlib.import_module("lockstep.linalg")).items()
    found |= {f"lockstep.linalg.{name}" for name, each in solvers if callable(each)}
    for path in (ROOT / "src" / "lockstep" / "linalg").glob("[!_]*.py"):
        names = re.findall(r"^(?:class|def) ([A-Za-z]\w*)", path.read_text(), re.M)
        found |= {f"lockstep.linalg.{path.stem}.{name}" for name in names}
    return found


def test_every_public_name_has_an_entry_in_the_one_page_of_the_api() -> None:
    entries = {
        str(page.relative_to(REFERENCE)): re.findall(
            r"^::: (lockstep[\w.]+)$", page.read_text(), re.M
        )
        for page in REFERENCE.rglob("*.md")
    }
    documented = entries.pop("api.md")
    results = {name for name in documented if name.startswith("lockstep.inspection.")}
    assert set(documented) - results == public_names()
    assert len(documented) == len(set(documented))
    assert not any(entries.values()), "the functions stand in one place, api.md"


def test_every_variable_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(LOCKSTEP_\w+)` \|", (REFERENCE / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(f.metadata["name"] for f in dataclasses.fields(Config))


def test_every_example_is_shown_and_in_the_index() -> None:
    examples = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert set(examples) <= set(re.findall(r"<!-- listing: examples/(\w+\.py)", text))
    index = re.findall(r"^\| \[(\w+\.py)\]", (DOCS / "examples.md").read_text(), re.M)
    assert sorted(index) == examples


def test_arguments_of_a_class_are_those_of_its_signature() -> None:
    """Where it has none, fields are "Attributes:", or ``mkdocs build --strict`` fails."""
    found = [
        (node.name, has_signature(node))
        for path in (ROOT / "src" / "lockstep").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "\nArgs:\n" in (ast.get_docstring(node) or "")
    ]
    assert len(found) > 3
    assert [name for name, signed in found if not signed] == []


def has_signature(node: ast.ClassDef) -> bool:
    decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
    is_dataclass = not decorators.isdisjoint({"dataclass", "dataclasses.dataclass"})
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return is_dataclass or "__init__" in methods


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = re.findall(r"([\w/-]+\.md)", navigation)
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    [commands] = [a.choices for a in cli._parser()._actions if isinstance(a.choices, dict)]
    of_a_program = {"run": options.run_parser(), "worker": options.worker_parser()}
    return {**commands, **of_a_program}


PAGES = {"worker": "run", "top": "report"}


@pytest.mark.parametrize(("command", "parser"), parsers().items())
def test_the_table_of_options_has_those_of_the_command_and_no_other(
    command: str, parser: argparse.ArgumentParser
) -> None:
    page = (REFERENCE / f"{PAGES.get(command, command)}.md").read_text()
    with_of = "| option | of |" in page
    listed: set[str] = set()
    table = re.search(r"^\| option \|.*?^$", page, re.M | re.S)
    assert table
    for row in table[0].splitlines():
        _, names, of, *_ = (cell.strip() for cell in row.split("|"))
        if not with_of or of in (command, "both"):
            listed.update(re.findall(r"`(-[\w-]+)", names))
    known = [set(action.option_strings) - {"-h", "--help"} for action in parser._actions]
    assert [names for names in known if names and not names & listed] == []
    assert listed <= set.union(*known)


def groups(parser: argparse.ArgumentParser) -> list[str]:
    return [group.title or "" for group in parser._action_groups if group._group_actions]


@pytest.mark.parametrize(("command", "parser"), parsers().items())
def test_the_help_has_groups_examples_and_a_word_on_each_argument(
    command: str, parser: argparse.ArgumentParser
) -> None:
    text = parser.format_help()
    assert len(groups(parser)) > 2, "options of one kind stand together"
    assert "examples:" in text
    assert f"lockstep {command} " in text.partition("examples:")[2]
    assert [action.dest for action in parser._actions if not action.help] == []


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert "examples:" in shown
    assert [command for command in parsers() if f"lockstep {command} " not in shown] == []


def test_the_layout_names_every_folder_of_the_package() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text()
    package = pathlib.Path(lockstep.__file__).parent
    folders = [path.parent.name for path in package.glob("*/__init__.py")]
    assert "linalg" in folders
    for folder in folders:
        assert re.search(rf"^      .*\b{folder}/", layout, re.M), folder
