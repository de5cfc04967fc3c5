"""The names that jaxlib needs in the library that it loads as an MPI.

jaxlib ends the process if the library lacks a name, so the names are read from jaxlib's file first.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_PREFIXES = (b"\0MPIABI_", b"\0mpiabi_version_", b"\0mpiwrapper_")
_NAME = re.compile(rb"\0((?:MPIABI|mpiabi_version|mpiwrapper)_\w+)(?=\0)")
_SECTION = struct.Struct("<IIQQQQIIQQ")
"""An ELF64 section header: name, type, flags, address, offset, size, link, info, align, entry."""
_PROGBITS = 1
_ALLOCATED, _EXECUTED, _STRINGS = 0x2, 0x4, 0x20


def jaxlib_library() -> Path | None:
    """jaxlib's shared library, which loads the engine; None where there is none of that name."""
    spec = importlib.util.find_spec("jaxlib")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "libjax_common.so")
        if path.is_file():
            return path
    return None


def names_wanted(library: Path) -> set[str]:
    """The names that a jaxlib needs in an MPI library; raises OSError or ValueError.

    They are among the constant strings of the file, which are a fifteenth of it; if the linker has
    not marked these, all data is searched.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            sections = list(_sections(file))
        except struct.error as error:
            raise ValueError(f"{library}: its table of sections is incomplete: {error}") from error
        marked = [section for section in sections if section.flags & _STRINGS]
        for chosen in (marked, sections):
            found = [_names(data, section.start, section.end) for section in chosen]
            if names := set().union(*found):
                return names
    return set()


def names_missing(library: Path, engine: Path) -> list[str]:
    """Those of `names_wanted` that the engine lacks; raises ValueError if no name is wanted."""
    loaded = ctypes.CDLL(str(engine))
    if not (wanted := names_wanted(library)):
        raise ValueError(f"no name was found in {library}")
    return sorted(name for name in wanted if not hasattr(loaded, name))


def _names(data: mmap.mmap, start: int, end: int) -> set[str]:
    found = set()
    for prefix in _PREFIXES:
        at = data.find(prefix, start, end)
        while at >= 0:
            if match := _NAME.match(data, at):
                found.add(match[1].decode())
            at = data.find(prefix, at + 1, end)
    return found


class _Section(NamedTuple):
    start: int
    end: int
    flags: int


def _sections(file: BinaryIO) -> Iterator[_Section]:
    """The sections of data; raises ValueError or struct.error where this is no ELF file."""
    header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", header, 40)
    width, count = struct.unpack_from("<HH", header, 58)
    file.seek(table)
    headers = file.read(width * count)
    for index in range(count):
        _, kind, flags, _, offset, size, *_ = _SECTION.unpack_from(headers, index * width)
        if kind == _PROGBITS and flags & _ALLOCATED and not flags & _EXECUTED:
            yield _Section(offset, offset + size, flags)
