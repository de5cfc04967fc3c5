"""Finds OpenSSL, which the engine loads for connections to other hosts."""

from __future__ import annotations

import contextlib
import ctypes.util
import re

INSTALL = "sudo apt install libssl3 (Debian, Ubuntu) or sudo dnf install openssl-libs"
_NAMES = ("libssl.so.3", "libssl.so.1.1")
_NEEDED = "SSL_CTX_set_psk_client_callback"
"""A build without pre-shared keys lacks it."""


def find() -> str:
    """OpenSSL's libssl: Python's, which is loaded already, else the system's."""
    if own := _python_s_own():
        return own
    # find_library comes last: it starts programs, for which this process may lack memory.
    for name in _NAMES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return ctypes.util.find_library("ssl") or _NAMES[0]


def _python_s_own() -> str:
    """The libssl of Python's ``ssl`` module; "": linked statically, or there is no such module."""
    try:
        import _ssl

        # dlsym also searches the libraries that `_ssl` is linked with.
        function = ctypes.CDLL(_ssl.__file__).SSL_CTX_new
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        with open("/proc/self/maps") as maps:
            path = next(path for line in maps if (path := _mapped_at(address, line)))
    # No such module, no file of its own, none of its functions to be seen, no /proc.
    except (ImportError, AttributeError, OSError, StopIteration):
        return ""
    found = re.search(r"/(libssl\.so\.(?:1\.1|\d+))[\d.a-z]*( \(deleted\))?$", path)
    if found is None:
        return ""
    # A file that was replaced since it was loaded is found by its name.
    return found[1] if found[2] else path


def _mapped_at(address: int, line: str) -> str:
    """The file of a line of /proc/self/maps, if the address is in its part of the memory."""
    first, last = (int(end, 16) for end in line.split(None, 1)[0].split("-"))
    words = line.rstrip("\n").split(None, 5)
    return words[5] if first <= address < last and len(words) > 5 else ""


def version() -> str:
    """What `find` finds calls itself, as "OpenSSL 3.0.19 27 Jan 2026"; "" if it does not load."""
    try:
        function = ctypes.CDLL(find()).OpenSSL_version  # of libcrypto, which libssl brings along
    except (OSError, AttributeError):
        return ""
    function.restype = ctypes.c_char_p
    return (function(0) or b"").decode(errors="replace")


def problem() -> str:
    """Why the engine cannot use OpenSSL; empty when it can."""
    path = find()
    try:
        getattr(ctypes.CDLL(path), _NEEDED)
    except OSError as error:
        return str(error)
    except AttributeError:
        return f"{path} has no {_NEEDED}, so it was built without pre-shared keys"
    return ""
