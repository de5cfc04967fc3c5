"""The constants of a program, from its text as MLIR prints it. Pure."""

from __future__ import annotations

import re

import numpy as np

_TYPE = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
_FLOATS = {"f16": "float16", "f32": "float32", "f64": "float64"}
_SIZES = {"i1": 1, "i8": 8, "ui8": 8, "bf16": 16, "i16": 16, "ui16": 16, "i32": 32, "ui32": 32}
_SIZES |= {"i64": 64, "ui64": 64, "f16": 16, "f32": 32, "f64": 64}
"""Bits of an element, where it has whole bytes."""


def elements(text: str, type_: str) -> list[str]:
    """The elements as numbers in their order; one, if all are equal or the text is not known.

    ``text`` is what stands in ``dense<...>``, ``type_`` is ``tensor<2x2xf32>``.
    """
    shape, kind = _parts(type_)
    if text.startswith("0x") and shape and (bits := _SIZES.get(kind, 0) // 4) and len(text) > 18:
        raw = text[2:]  # little-endian, as it lies in memory
        each = [raw[i : i + bits] for i in range(0, len(raw), bits)]
        return [shown(f"0x{bytes.fromhex(one)[::-1].hex()}", type_) for one in each]
    return [shown(one.strip(" []()"), type_) for one in text.split(",")]


def shown(text: str, type_: str) -> str:
    """``3.0`` of ``3.000000e+00``, and the number of bits such as ``0x7F800000``."""
    _, kind = _parts(type_)
    try:
        if text.startswith("0x"):
            return _of_bits(int(text, 16), kind)
        if kind in _FLOATS:
            return str(np.dtype(_FLOATS[kind]).type(text))
        return repr(float(text)) if "." in text or "e" in text.lower() else text
    except (ValueError, OverflowError):
        return text


def _of_bits(bits: int, kind: str) -> str:
    if kind == "bf16":
        bits, kind = bits << 16, "f32"
    size = _SIZES[kind] // 8
    unsigned = np.frombuffer(bits.to_bytes(size, "little"), f"<u{size}")
    if kind in _FLOATS:
        return str(unsigned.view(_FLOATS[kind])[0])
    return str(unsigned[0] if kind.startswith("u") else unsigned.view(f"<i{size}")[0])


def index(at: int, type_: str) -> str:
    """``3``, or of an array of several dimensions ``[1, 1]``."""
    shape, _ = _parts(type_)
    if len(shape) < 2:
        return str(at)
    return str([int(one) for one in np.unravel_index(at, shape)])


def _parts(type_: str) -> tuple[tuple[int, ...], str]:
    """``(2, 2), "f32"`` of ``tensor<2x2xf32>``."""
    found = _TYPE.fullmatch(type_)
    if found is None:
        return (), ""
    return tuple(int(size) for size in found[1].split("x") if size), found[2]
