"""Which NCCL is found, and whether it is taken to load the plug-in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lanes import needs
from lockstep.nccl import installed, start
from processes import captured

pytestmark = needs(bool(shutil.which("cc")), "needs a C compiler")
ASK = """
from lockstep.nccl import installed, start
print(repr(installed.version("cuda")), start._is_recorded("cuda"))
print(repr(installed.version("rocm")), start._is_recorded("rocm"))
"""


def library(folder: Path, name: str, version: int, status: int = 0) -> None:
    source = folder / "nccl.c"
    source.write_text(f"int ncclGetVersion(int* v) {{ *v = {version}; return {status}; }}\n")
    build = ["cc", "-shared", "-fPIC", str(source), "-o", str(folder / name)]
    subprocess.run(build, check=True, timeout=60)


def found(folder: Path) -> list[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return captured([sys.executable, "-c", ASK], env=environ).stdout.splitlines()


@pytest.mark.parametrize(
    ("number", "version", "loads"), [(22809, "2.28.9", True), (22602, "2.26.2", False)]
)
def test_a_library_of_the_system_says_its_version(
    tmp_path: Path, number: int, version: str, loads: bool
) -> None:
    library(tmp_path, "libnccl.so.2", number)
    library(tmp_path, "librccl.so.1", number)
    assert found(tmp_path) == [f"{version!r} {loads}"] * 2


def test_a_library_that_is_none_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library")
    library(tmp_path, "librccl.so.1", 22707, status=2)
    # Without a version NVIDIA's is taken for one that pip brings, and AMD's for an old one.
    assert found(tmp_path) == ["'' True", "'' False"]


def test_the_package_of_pip_counts_where_no_other_is_in_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(installed.importlib.metadata, "version", lambda name: "2.30.7")
    assert installed.version("cuda") == "2.30.7"
    assert start._is_recorded("cuda")
