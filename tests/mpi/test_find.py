"""Which MPI ``--collectives mpi`` uses, and what it says when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep._errors import ConfigError, InitializationError
from lockstep.bootstrap import mpi_backend


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mpi_backend.sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(mpi_backend.site, "getuserbase", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(mpi_backend, "said_by", lambda *command: "")


def library(folder: Path, name: str = "libmpi_abi.so.1") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return str(folder / name)


def test_without_an_mpi_the_error_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match="pip install mpich") as caught:
        mpi_backend.find({})
    assert "LOCKSTEP_MPI_LIBRARY" in str(caught.value)
    assert "MPIwrapper" in str(caught.value)
    assert not mpi_backend.available({})


def test_libraries_are_found_in_the_loaders_cache() -> None:
    cache = """\
\tlibmpi_cxx.so.40 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libmpi_cxx.so.40
\tlibmpi.so.40 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libmpi.so.40
\tlibmpich.so.12 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libmpich.so.12
\tlibmpi_abi.so.1 (libc6,x86-64) => /opt/lib/libmpi_abi.so.1
\tlibm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6
"""
    found = mpi_backend.in_cache(cache)
    assert found == ["/usr/lib/x86_64-linux-gnu/libmpi.so.40", "/opt/lib/libmpi_abi.so.1"]
    assert mpi_backend.with_standard_abi(found) == "/opt/lib/libmpi_abi.so.1"


def test_this_python_goes_first_then_the_loaders_path(tmp_path: Path) -> None:
    elsewhere = library(tmp_path / "elsewhere")
    environ = {"LD_LIBRARY_PATH": f"/nonexistent:{tmp_path / 'elsewhere'}"}
    assert mpi_backend.find(environ) == elsewhere
    own = library(tmp_path / "prefix" / "lib")
    assert mpi_backend.find(environ) == own
    assert mpi_backend.available(environ)


def test_a_name_without_a_number_is_for_linkers(tmp_path: Path) -> None:
    library(tmp_path / "prefix" / "lib", "libmpi_abi.so")
    library(tmp_path / "prefix" / "lib", "libmpi.so.12")
    assert not mpi_backend.available({})


def test_a_named_library_goes_before_a_found_one(tmp_path: Path) -> None:
    library(tmp_path / "prefix" / "lib")
    named = library(tmp_path / "named")
    assert mpi_backend.find({"LOCKSTEP_MPI_LIBRARY": named}) == named
    with pytest.raises(ConfigError, match=r"LOCKSTEP_MPI_LIBRARY='/no/such': no such file"):
        mpi_backend.find({"LOCKSTEP_MPI_LIBRARY": "/no/such"})


def test_a_wrapped_mpi_of_the_user_goes_before_all(tmp_path: Path) -> None:
    named = library(tmp_path / "named")
    environ = {"MPITRAMPOLINE_LIB": "/opt/libmpiwrapper.so", "LOCKSTEP_MPI_LIBRARY": named}
    assert mpi_backend.find(environ) == "/opt/libmpiwrapper.so"


@pytest.mark.parametrize("ours", ["liblockstep.so", "liblockstep_mpi.so"])
def test_what_a_lockstep_process_above_has_set_is_not_the_users(ours: str) -> None:
    assert not mpi_backend.available({"MPITRAMPOLINE_LIB": f"/site/lockstep/{ours}"})


def test_several_devices_are_refused_in_words() -> None:
    mpi_backend.check_devices(1)
    with pytest.raises(InitializationError, match=r"takes one.*-n N -d 1.*--collectives lockstep"):
        mpi_backend.check_devices(4)
