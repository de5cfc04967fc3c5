"""What jaxlib asks of the library that it loads in place of an MPI.

jaxlib ends the process when a name is missing there, so the names are read from jaxlib's file.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_PREFIXES = (b"\0MPIABI_", b"\0mpiabi_version_", b"\0mpiwrapper_")
_NAME = re.compile(rb"\0((?:MPIABI|mpiabi_version|mpiwrapper)_\w+)(?=\0)")
_SECTION = struct.Struct("<IIQQQQIIQQ")
"""An ELF64 section header: name, type, flags, address, offset, size, link, info, align, entry."""
_PROGBITS, _STRINGS = 1, 0x20


def jaxlib_library() -> Path | None:
    """jaxlib's shared library, which loads the engine; None where there is none of that name."""
    spec = importlib.util.find_spec("jaxlib")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "libjax_common.so")
        if path.is_file():
            return path
    return None


def names_wanted(library: Path) -> set[str]:
    """The names that a jaxlib asks an MPI library for; raises OSError or ValueError.

    They stand among the constants of the file, a fifteenth of it.
    """
    names: set[str] = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, size in _constants(file):
            names |= _names(data, start, start + size)
    return names


def names_missing(library: Path, engine: Path) -> list[str]:
    """The names of ``names_wanted`` that the engine lacks."""
    loaded = ctypes.CDLL(str(engine))
    return sorted(name for name in names_wanted(library) if not hasattr(loaded, name))


def _names(data: mmap.mmap, start: int, end: int) -> set[str]:
    found = set()
    for prefix in _PREFIXES:
        at = data.find(prefix, start, end)
        while at >= 0:
            if match := _NAME.match(data, at):
                found.add(match[1].decode())
            at = data.find(prefix, at + 1, end)
    return found


def _constants(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Offset and size of the sections with constant strings."""
    header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,), (width, count) = (
        struct.unpack_from("<Q", header, 40),
        struct.unpack_from("<HH", header, 58),
    )
    file.seek(table)
    sections = file.read(width * count)
    for index in range(count):
        _, kind, flags, _, offset, size, *_ = _SECTION.unpack_from(sections, index * width)
        if kind == _PROGBITS and flags & _STRINGS:
            yield offset, size
