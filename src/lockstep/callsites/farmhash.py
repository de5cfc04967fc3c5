"""FarmHash's ``Fingerprint64``, which JAX computes of a program's fingerprint.

Geoff Pike, FarmHash, 2014. FarmHash guarantees that its fingerprint functions never change. Only
strings of up to 64 bytes are supported, because a program's fingerprint is a decimal number of 128
bits.
"""

from __future__ import annotations

_WORD = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def fingerprint64(text: bytes) -> int:
    """The 64-bit fingerprint; raises ValueError for more than 64 bytes."""
    if len(text) > 64:
        raise ValueError(f"{len(text)} bytes; at most 64 are supported")
    if len(text) > 32:
        return _up_to_64(text)
    if len(text) > 16:
        return _up_to_32(text)
    return _up_to_16(text)


def _rotate(value: int, by: int) -> int:
    return (value >> by | value << (64 - by)) & _WORD


def _mix(value: int) -> int:
    return value ^ value >> 47


def _fetch(text: bytes, at: int, size: int = 8) -> int:
    at = at if at >= 0 else len(text) + at
    return int.from_bytes(text[at : at + size], "little")


def _hash_16(low: int, high: int, multiplier: int) -> int:
    a = _mix((low ^ high) * multiplier & _WORD)
    b = _mix((high ^ a) * multiplier & _WORD)
    return b * multiplier & _WORD


def _up_to_16(text: bytes) -> int:
    size = len(text)
    multiplier = _K2 + 2 * size
    if size >= 8:
        a, b = _fetch(text, 0) + _K2 & _WORD, _fetch(text, -8)
        c = _rotate(b, 37) * multiplier + a & _WORD
        return _hash_16(c, (_rotate(a, 25) + b) * multiplier & _WORD, multiplier)
    if size >= 4:
        first, last = _fetch(text, 0, 4), _fetch(text, -4, 4)
        return _hash_16(size + (first << 3) & _WORD, last, multiplier)
    if size > 0:
        y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
        return _mix(y * _K2 & _WORD ^ z * _K0 & _WORD) * _K2 & _WORD
    return _K2


def _ends(text: bytes) -> tuple[int, int, int, int, int]:
    multiplier = _K2 + 2 * len(text)
    a, b = _fetch(text, 0), _fetch(text, 8)
    c, d = _fetch(text, -8) * multiplier & _WORD, _fetch(text, -16) * _K2 & _WORD
    return multiplier, a, b, c, d


def _up_to_32(text: bytes) -> int:
    multiplier, a, b, c, d = _ends(text)
    a = a * _K1 & _WORD
    return _hash_16(
        _rotate(a + b & _WORD, 43) + _rotate(c, 30) + d & _WORD,
        a + _rotate(b + _K2 & _WORD, 18) + c & _WORD,
        multiplier,
    )


def _up_to_64(text: bytes) -> int:
    multiplier, a, b, c, d = _ends(text)
    a = a * _K2 & _WORD
    y = _rotate(a + b & _WORD, 43) + _rotate(c, 30) + d & _WORD
    z = _hash_16(y, a + _rotate(b + _K2 & _WORD, 18) + c & _WORD, multiplier)
    e, f = _fetch(text, 16) * multiplier & _WORD, _fetch(text, 24)
    g = (y + _fetch(text, -32)) * multiplier & _WORD
    h = (z + _fetch(text, -24)) * multiplier & _WORD
    return _hash_16(
        _rotate(e + f & _WORD, 43) + _rotate(g, 30) + h & _WORD,
        e + _rotate(f + a & _WORD, 18) + g & _WORD,
        multiplier,
    )
