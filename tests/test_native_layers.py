"""The folders of the engine are layers: each includes only what lies below it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

NATIVE = Path(__file__).parents[1] / "native"
LAYERS: tuple[set[str], ...] = (
    {"mpi_passthrough"},
    {"api"},
    {"collectives", "p2p", "xla_probe"},
    {"core"},
    {"control/network"},
    {"control"},
    {"transport/tcp", "transport/ucx"},
    {"transport/shm"},
    {"transport"},
    {"linalg", "nccl"},
    {"recorder"},
    {"base"},
)
"""From the top down: a file includes from its own folder and from lower layers.

Two folders of one layer do not include each other. A name here stands for the files of that folder
and of those below it that have no name of their own.
"""
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}


def folder_of(file: PurePosixPath) -> str:
    """The folder with a layer to which a file of ``native`` belongs; "" if none has one."""
    return next((str(at) for at in file.parents if str(at) in LAYER_OF), "")


def included(source: str) -> Iterator[str]:
    yield from re.findall(r'^\s*#\s*include "([^"]+)"', source, re.MULTILINE)


def upward(folder: str, source: str) -> set[str]:
    """What a file of this folder includes that is neither its own nor of a lower layer."""
    found = {name: folder_of(PurePosixPath(name)) for name in included(source)}
    return {
        name
        for name, other in found.items()
        if other != folder and LAYER_OF.get(other, -1) <= LAYER_OF[folder]
    }


def sources() -> list[PurePosixPath]:
    found = [path for path in NATIVE.rglob("*") if path.suffix in {".cc", ".h", ".inc"}]
    return [PurePosixPath(path.relative_to(NATIVE)) for path in found if "tests" not in path.parts]


def test_every_folder_of_the_engine_has_its_layer() -> None:
    assert {folder_of(file) for file in sources()} == LAYER_OF.keys()


@pytest.mark.parametrize("folder", sorted(LAYER_OF))
def test_includes_go_down(folder: str) -> None:
    for file in sources():
        if folder_of(file) == folder:
            up = upward(folder, (NATIVE / file).read_text())
            assert not up, f"{file} includes {up}, which does not lie below {folder}"


def test_an_include_that_goes_up_or_sideways_is_found() -> None:
    source = '#include "base/error.h"\n#include "core/job.h"\n#include "transport/tcp/frame.h"\n'
    assert upward("transport/tcp", source) == {"core/job.h"}
    assert upward("transport/ucx", source) == {"core/job.h", "transport/tcp/frame.h"}
    assert upward("api", source + '#include "elsewhere/new.h"\n') == {"elsewhere/new.h"}
