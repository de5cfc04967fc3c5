"""Where OpenSSL is found, and what is said when it cannot be used."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from lockstep.system import openssl

OTHER = "10-20 r-xp 00000000 fe:00 7  /opt/other/libssl.so.1.1\n20-30 r-xp 0 0:0 0 \n"


def test_python_s_own_openssl_is_found_and_loads() -> None:
    library = ctypes.CDLL(openssl.find())
    assert library.SSL_CTX_set_psk_client_callback
    assert openssl.problem() == ""


def test_its_version_is_that_of_python_s_own() -> None:
    ssl = pytest.importorskip("ssl")
    assert openssl.version() == ssl.OPENSSL_VERSION


def test_what_does_not_load_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssl, "find", lambda: "libno.so.7")
    assert openssl.version() == ""
    monkeypatch.setattr(openssl, "find", lambda: "libc.so.6")
    assert openssl.version() == ""


def mapped(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Lets Python's functions lie in that file."""
    pytest.importorskip("_ssl")
    maps = f"{OTHER}0-{'f' * 16} r-xp 00000000 fe:00 8    {path}\n".splitlines(keepends=True)

    class Maps(list[str]):
        def __enter__(self) -> Maps:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("builtins.open", lambda *_: Maps(maps))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/conda/lib/libssl.so.3", "/conda/lib/libssl.so.3"),
        ("/with a space/libssl.so.1.1.1k", "/with a space/libssl.so.1.1.1k"),
        ("/usr/lib/libssl.so.3 (deleted)", "libssl.so.3"),
        ("/usr/lib/libssl.so.3.0.9 (deleted)", "libssl.so.3"),
        ("/usr/lib/libssl.so.1.1.1k (deleted)", "libssl.so.1.1"),
    ],
)
def test_the_one_that_python_is_linked_with_and_no_other(
    monkeypatch: pytest.MonkeyPatch, path: str, found: str
) -> None:
    mapped(monkeypatch, path)
    assert openssl.find() == found


def test_a_python_with_openssl_in_it_has_the_system_s(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped(monkeypatch, "/opt/python/lib/libpython3.so")
    monkeypatch.setattr(openssl, "_NAMES", ("libno.so.7", "libc.so.6"))
    assert openssl.find() == "libc.so.6"


def test_a_python_without_it_and_a_system_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_ssl", None)
    monkeypatch.setattr(openssl, "_NAMES", ("libno.so.7",))
    monkeypatch.setattr(openssl.ctypes.util, "find_library", lambda name: None)
    assert openssl.find() == "libno.so.7"
    assert "libno.so.7" in openssl.problem()


def test_one_without_shared_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(openssl, "find", lambda: "libc.so.6")
    assert openssl.problem().startswith("libc.so.6 has no SSL_CTX_set_psk_client_callback")
    (tmp_path / "libssl.so.3").write_text("no library")
    monkeypatch.setattr(openssl, "find", lambda: str(tmp_path / "libssl.so.3"))
    assert "libssl.so.3" in openssl.problem()
