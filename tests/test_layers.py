"""The folders of the package are floors: each imports only what lies below it. In a folder, no
imports go round in a circle."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

import lockstep

ROOT = Path(lockstep.__file__).parent
FLOORS: tuple[set[str], ...] = (
    {"__main__"},
    {"cli"},
    {"bench", "notebook"},
    {"doctor", "report"},
    {"testing"},
    {"__init__"},
    {"data", "inspection"},
    {"pool"},
    {"launch"},
    {"hosts"},
    {"processes"},
    {"sync"},
    {"bootstrap"},
    {"nccl", "replicas"},
    {"watchdog"},
    {"linalg", "programs"},
    {"hlo"},
    {"callsites", "engine", "system"},
    {"flight_recorder", "job"},
    {"_jax_compat", "_config", "_errors", "_finding", "_run_files", "_stderr", "_words"},
)
"""From the top down: a folder or file of the package imports from itself and from lower floors.

Those of the lowest floor import each other. Two of one floor above it do not.
"""
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
GROUND = len(FLOORS) - 1
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


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module, or name of a module, that a file imports, at its top or later."""
    return tuple(
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )


def part(path: Path) -> str:
    """The folder of the package, or its file, to which ``path`` belongs, at any depth."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of this package that a file imports from, its own left out.

    ``lockstep`` itself, which many ask for the version, is none.
    """
    names = (name.split(".") for name in imported(path))
    found = {name[1] for name in names if name[0] == "lockstep" and len(name) > 1}
    return (found & FLOOR_OF.keys()) - {part(path), "__init__"}


def test_every_part_of_the_package_has_its_floor() -> None:
    found = {part(path) for path in ROOT.rglob("*.py")}
    assert found == FLOOR_OF.keys()


@pytest.mark.parametrize("name", sorted(FLOOR_OF))
def test_imports_go_down(name: str) -> None:
    folder = ROOT / name
    paths = list(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    assert paths
    for path in paths:
        up = {
            other
            for other in imported_parts(path)
            if FLOOR_OF[other] <= FLOOR_OF[name] and not FLOOR_OF[other] == GROUND == FLOOR_OF[name]
        }
        assert not up, f"{path.relative_to(ROOT)} imports {up}, which does not lie below {name}"


def module(path: Path) -> str:
    """``lockstep.pool.call``; of an ``__init__.py``, the name of its folder."""
    names = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other round in a circle; empty: there is none."""
    left = dict(imports)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    path = list(left)[:1]
    while path and path[-1] not in path[:-1]:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :] if path else []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) in (
        ["b", "c", "b"],
        ["c", "b", "c"],
    )
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("room", sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
def test_no_imports_go_round_inside_a_room(room: str) -> None:
    paths = {module(path): path for path in (ROOT / room).rglob("*.py")}
    # A name that is imported from a module counts as the module.
    imports = {
        name: {
            found if found in paths else found.rpartition(".")[0]
            for found in imported(path)
            if not (path.name == "__init__.py" and found.startswith(f"{name}."))
        }
        - {name}
        for name, path in paths.items()
    }
    assert circle(imports) == []


def test_the_matching_of_records_starts_nothing_and_looks_at_no_clock() -> None:
    for path in (ROOT / "flight_recorder").glob("*.py"):
        found = {name.split(".")[0] for name in imported(path)}
        assert not found & (EFFECTS | HEAVY), f"{path.name} imports {found & (EFFECTS | HEAVY)}"


def test_private_jax_and_the_words_of_its_errors_are_in_one_folder() -> None:
    private = ("jax._src", "jaxlib._jax", "config.values", "in str(error)", "For simplicity, JAX")
    private += ("MPI error", "bad_cast", "Unsupported primitive")
    private += ("DEADLINE_EXCEEDED", "UNAVAILABLE", "ALREADY_EXISTS")
    paths = [path for path in ROOT.rglob("*.py") if path.parent.name != "_jax_compat"]
    found = [f"{path}: {word}" for path in paths for word in private if word in path.read_text()]
    assert found == []
    assert any("jax._src" in path.read_text() for path in (ROOT / "_jax_compat").glob("*.py"))
