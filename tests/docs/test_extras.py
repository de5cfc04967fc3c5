"""The extras bring what their pages and programs import, and the first pages list them."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_DEVELOPERS = {"dev", "docs", "wheel"}
PACKAGES = {"sklearn": "scikit-learn", "orbax": "orbax-checkpoint"}
"""Where a module has another name than its package."""
OURS = {"lockstep", "jax", "numpy"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[]", each)[0] for each in requirements}


def modules(code: str) -> set[str]:
    """The modules that ``code`` imports, but for Python's own and Lockstep's."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - OURS


def notebook_code() -> str:
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    return "\n".join(line.rstrip("\n") for line in lines if line[0] not in "%!")


@pytest.mark.parametrize("extra", ["examples", "notebook"])
def test_an_extra_has_what_the_notebook_imports(extra: str) -> None:
    imported = modules(notebook_code())
    assert imported == {"matplotlib"}
    assert imported <= names(EXTRAS[extra])


def test_the_extra_of_the_examples_has_all_that_they_import() -> None:
    beside = {path.stem for path in (ROOT / "examples").glob("*.py")}
    imported = {
        PACKAGES.get(module, module)
        for path in (ROOT / "examples").glob("*.py")
        for module in modules(path.read_text()) - beside
    }
    assert "scikit-learn" in imported
    assert imported <= names(EXTRAS["examples"])


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_list_every_extra_for_users(page: str) -> None:
    listed = re.search(r"^Extras.*?\(\[what", (ROOT / page).read_text(), re.M | re.S)
    assert listed
    found = re.findall(r"`\[?(\w+)\]?`", listed[0])
    assert found == sorted(set(EXTRAS) - OF_DEVELOPERS)


def test_the_table_of_dependencies_has_every_extra_with_its_packages() -> None:
    page = (ROOT / "docs" / "design" / "dependencies.md").read_text()
    table = re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.M)
    assert sorted(extra for extra, _ in table) == sorted(EXTRAS)
    for extra, packages in table:
        for name in names(EXTRAS[extra]):
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", packages), (extra, name)
