"""Versions, and what jaxlib asks of the library that it loads."""

from __future__ import annotations

import struct
from pathlib import Path

import jax
import jaxlib.version
import pytest

from lockstep import _jax_compat
from lockstep._jax_compat import mpi_symbols, versions
from lockstep.bootstrap import plugin
from lockstep.engine import bindings


@pytest.mark.parametrize(
    ("version", "untested"),
    [("0.8.0", False), ("0.12.0.1", False), ("0.12.99", False), ("0.13.0", True), ("1.0", True)],
)
def test_what_is_newer_than_the_newest_tested_series(
    monkeypatch: pytest.MonkeyPatch, version: str, untested: bool
) -> None:
    monkeypatch.setattr(versions, "NEWEST_TESTED_JAX", (0, 12))
    assert _jax_compat.is_untested(version) == untested


def test_the_pin_admits_the_newest_tested_series_and_nothing_later() -> None:
    *first, last = _jax_compat.NEWEST_TESTED_JAX
    later = ".".join(map(str, [*first, last + 1]))
    assert _jax_compat.pin() == f"pip install 'jax<{later}'"


def test_the_installed_jax_is_one_that_was_tested() -> None:
    """When this fails, `make versions` has to be run with the new jax."""
    assert not _jax_compat.is_untested(jax.__version__)
    assert _jax_compat.untested_note() == ""


def test_the_version_of_jaxlib_is_read_without_importing_it() -> None:
    assert _jax_compat.jaxlib_version_on_disk() == jaxlib.version.__version__


def test_a_known_problem_is_named_with_its_fix_until_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAX_USE_SHARDY_PARTITIONER", raising=False)
    monkeypatch.setattr(versions, "jaxlib_version_on_disk", lambda: "0.11.2")
    assert versions.known_problem().startswith("jaxlib 0.11.2: XLA crashes where an input")
    assert "pip install 'jax!=0.11.2'" in versions.known_problem()
    monkeypatch.setenv("JAX_USE_SHARDY_PARTITIONER", "0")
    assert versions.known_problem() == ""
    monkeypatch.delenv("JAX_USE_SHARDY_PARTITIONER")
    monkeypatch.setattr(versions, "jaxlib_version_on_disk", lambda: "0.12.0.1")
    assert versions.known_problem() == ""


def elf(strings: bytes, flags: int = 0x32) -> bytes:
    """A 64-bit file with one section of constant strings, and one that holds code."""
    names = b"\0MPIABI_In_code\0"
    start = 64 + 2 * 64
    section = struct.Struct("<IIQQQQIIQQ")
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 40, 64)
    struct.pack_into("<HH", head, 58, 64, 2)
    table = section.pack(0, 1, flags, 0, start, len(strings), 0, 0, 1, 1)
    table += section.pack(0, 1, 0x6, 0, start + len(strings), len(names), 0, 0, 1, 0)
    return bytes(head) + table + strings + names


def test_names_are_whole_strings_among_the_constants(tmp_path: Path) -> None:
    data = b"\0MPIABI_Send\0mpiabi_version_major\0mpiabi_loaded_version_major\0xMPIABI_No"
    data += b"\0MPIABI_\0mpiwrapper_export_fortran_constants_\0"
    library = tmp_path / "library.so"
    library.write_bytes(elf(data))
    assert _jax_compat.names_wanted(library) == {
        "MPIABI_Send",
        "mpiabi_version_major",
        "mpiwrapper_export_fortran_constants_",
    }


def test_names_among_other_constants_are_found_too(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(elf(b"\0MPIABI_Send\0", flags=0x2))
    assert _jax_compat.names_wanted(library) == {"MPIABI_Send"}


def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(elf(b"\0MPIABI_Send\0")[:100])
    with pytest.raises(ValueError, match="table of sections is incomplete"):
        mpi_symbols.names_wanted(library)


def test_a_file_of_another_kind_has_no_names_to_read(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"MZ" + bytes(100))
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        mpi_symbols.names_wanted(library)


def test_the_engine_has_every_name_that_the_installed_jaxlib_wants() -> None:
    library = _jax_compat.jaxlib_library()
    assert library is not None
    assert len(mpi_symbols.names_wanted(library)) > 600
    assert mpi_symbols.names_missing(library, bindings.library_path()) == []


def test_an_untested_jaxlib_that_wants_more_gets_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxlib would end the process where it loads a library that lacks a name."""
    assert plugin._misfit("libc.so.6") == ""
    monkeypatch.setattr(versions, "NEWEST_TESTED_JAX", (0, 1))
    assert plugin._misfit("libc.so.6").startswith("jaxlib wants 6")
    assert plugin._misfit(str(bindings.library_path())) == ""
