"""The first element in which copies of a piece differ, found by digests of ever smaller parts.

Pure: the copies are NumPy arrays. Elements are equal as in `lockstep.replicas.hashes`: by their
bits, and all NaNs are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

PARTS = 1024
"""In how many parts a range of elements is compared at a time."""


def parts(first: int, end: int) -> list[tuple[int, int]]:
    """Divides a range of elements into at most `PARTS` ranges: all but the last of one length."""
    length = max(1, -(-(end - first) // PARTS))
    return [(at, min(at + length, end)) for at in range(first, end, length)]


def digests(copy: Any, first: int, end: int) -> list[str]:
    """A digest for each of the `parts` of a range of the elements, in row-major order."""
    return [
        hashlib.blake2b(_bytes(copy.reshape(-1)[a:b]), digest_size=8).hexdigest()
        for a, b in parts(first, end)
    ]


def differing(copies: Sequence[Sequence[str]]) -> list[int]:
    """The places in which lists of digests differ."""
    return [at for at, found in enumerate(zip(*copies, strict=True)) if len(set(found)) > 1]


def shown(copy: Any, at: int) -> tuple[str, str]:
    """Element ``at``, and its bits in hexadecimal, those of a complex number one after another."""
    element = copy.reshape(-1)[at : at + 1]
    raw = np.ascontiguousarray(element).view(np.uint8)
    width = raw.size // 2 if np.iscomplexobj(element) else raw.size
    bits = [bytes(raw[at : at + width])[::-1].hex() for at in range(0, raw.size, width)]
    return str(element[0]), " ".join(f"0x{each}" for each in bits)


def _bytes(elements: Any) -> bytes:
    if np.iscomplexobj(elements):
        elements = np.ascontiguousarray(elements).view(elements.real.dtype)
    if _has_nan(elements.dtype):
        elements = np.where(np.isnan(elements), np.array(np.nan, elements.dtype), elements)
    elif elements.dtype.kind == "V":
        # Types of less than a byte, of which NumPy may fill the rest of the byte with anything.
        elements = elements.astype(np.float32)
    return np.ascontiguousarray(elements).tobytes()


def _has_nan(dtype: Any) -> bool:
    if dtype.kind not in "fV":  # V: the types that NumPy itself does not have
        return False
    return bool(np.isnan(np.array(np.nan).astype(dtype).astype(np.float64)))
