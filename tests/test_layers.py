"""The folders of the package are layers: each imports only what lies below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep

ROOT = Path(lockstep.__file__).parent
BELOW: dict[str, set[str]] = {
    "_jax_compat": set(),
    "record": set(),
    "linalg": set(),
    "runtime": {"record"},
    "launch": {"record", "runtime"},
    "doctor": {"runtime"},
    "bench": {"runtime", "doctor"},
    "report": {"record", "runtime", "launch"},
}
"""What each folder may import, besides the package's own ``_modules``, which import each other."""
GROUND = {"_jax_compat"}
"""What all folders may import, as the package's own ``_modules``."""
ABOVE_ALL = {"cli.py", "__main__.py", "__init__.py"}
"""The command line, and the public names."""
EFFECTS = {
    "subprocess",
    "threading",
    "multiprocessing",
    "socket",
    "time",
    "datetime",
    "sys",
    "fcntl",
}
HEAVY = {"jax", "jaxlib", "numpy", "rich"}


def imported(path: Path) -> Iterator[str]:
    """Every module, or name of a module, that a file imports, at its top or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def folders(path: Path) -> set[str]:
    """The folders of this package that a file imports from."""
    names = (name.split(".") for name in imported(path))
    found = {name[1] for name in names if name[0] == "lockstep" and len(name) > 1}
    return {name for name in found if (ROOT / name).is_dir() and name not in GROUND}


def test_every_folder_has_its_layer() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == BELOW.keys()


@pytest.mark.parametrize("layer", ["", *BELOW])
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    may = BELOW.get(layer, set()) | ({layer} if layer else set())
    for path in (ROOT / layer).glob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name not in ABOVE_ALL:
            assert folders(path) <= may, f"{name} imports {folders(path) - may}"


def test_the_matching_of_records_starts_nothing_and_looks_at_no_clock() -> None:
    for path in (ROOT / "record").glob("*.py"):
        found = {name.split(".")[0] for name in imported(path)}
        assert not found & (EFFECTS | HEAVY), f"{path.name} imports {found & (EFFECTS | HEAVY)}"


def test_private_jax_and_the_words_of_its_errors_are_in_one_folder() -> None:
    private = ("jax._src", "jaxlib._jax", "config.values", "DEADLINE_EXCEEDED", "in str(error)")
    paths = [path for path in ROOT.rglob("*.py") if path.parent.name != "_jax_compat"]
    found = [f"{path}: {word}" for path in paths for word in private if word in path.read_text()]
    assert found == []
    assert any("jax._src" in path.read_text() for path in (ROOT / "_jax_compat").glob("*.py"))
