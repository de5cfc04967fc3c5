"""Which GPUs of a host a program sees, by the variables that hide some. Pure.

CUDA takes the identifiers in order and stops at the first that is none, as ``-1`` (source: CUDA
programming guide, environment variables); so do AMD's HIP and ROCr.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

OF_CUDA = "CUDA_VISIBLE_DEVICES"
_OF_ROCR = "ROCR_VISIBLE_DEVICES"
"""Hides GPUs of AMD from HIP, whose own variables count the rest."""
_OF_HIP = ("HIP_VISIBLE_DEVICES", OF_CUDA)
"""HIP takes the first one that is set."""
VARIABLES = {"cuda": (OF_CUDA,), "rocm": (_OF_ROCR, *_OF_HIP)}
_NAME = re.compile(r"(GPU|MIG)-\S+")
_MIG = "MIG-"


def shown(vendor: str, environ: Mapping[str, str], there: int) -> list[str] | None:
    """The identifiers of the GPUs that a program sees; None: no variable hides any.

    ``there``: how many GPUs the host has; 0: not known.
    """
    if vendor == "cuda":
        return _valid(environ, OF_CUDA, there)
    below = _valid(environ, _OF_ROCR, there)
    of_hip = next((name for name in _OF_HIP if name in environ), "")
    if below == []:
        return below
    above = _valid(environ, of_hip, len(below) if below else there)
    return below if above is None else above


def migs(environ: Mapping[str, str]) -> list[str]:
    """The MIG devices that are named, of which CUDA shows a process only the first.

    Source: CUDA programming guide ("only single MIG instance enumeration is supported").
    """
    names = _valid(environ, OF_CUDA, 0) or []
    return names if names and names[0].startswith(_MIG) else []


def settings(environ: Mapping[str, str]) -> str:
    """The variables that hide GPUs, as a shell shows them; "": none does."""
    names = dict.fromkeys(name for names in VARIABLES.values() for name in names)
    return " ".join(f"{name}={environ[name]}" for name in names if name in environ)


def _valid(environ: Mapping[str, str], variable: str, there: int) -> list[str] | None:
    if variable not in environ:
        return None
    found: list[str] = []
    for part in map(str.strip, environ[variable].split(",")):
        is_index = part.isascii() and part.isdigit() and not 0 < there <= int(part)
        if part in found or not (is_index or _NAME.fullmatch(part)):
            break
        found.append(part)
    return found
