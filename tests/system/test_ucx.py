"""Where UCX is looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lockstep.system import ucx


def test_a_chosen_library_is_the_only_candidate() -> None:
    assert ucx.candidates("/opt/ucx/libucp.so.0") == ["/opt/ucx/libucp.so.0"]


@pytest.mark.parametrize("installed", [True, False])
def test_the_system_s_comes_before_that_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    library = tmp_path / "libucx" / "lib" / "libucp.so.0"
    if installed:
        library.parent.mkdir(parents=True)
        library.touch()
        (tmp_path / "libucx" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "libucx", raising=False)
    assert ucx.candidates(None) == ["libucp.so.0", *([str(library)] if installed else [])]


def test_what_is_no_ucx_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "libucp.so.0").write_text("no library")
    assert ucx.found(str(tmp_path / "libucp.so.0")) is None
