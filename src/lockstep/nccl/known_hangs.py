"""Hangs of NCCL that a newer version does not have, with their sources. Pure."""

from __future__ import annotations

import dataclasses
import re

_RELEASE = "https://github.com/NVIDIA/nccl/releases/tag/v"


@dataclasses.dataclass(frozen=True)
class KnownHang:
    before: tuple[int, int, int]
    """The version that does not have it."""
    what: str
    source: str
    machine: str = ""
    """The processor that it needs; "": any."""
    gpus: str = ""
    """A regular expression for the names of the GPUs that it needs; "": any."""


KNOWN = (
    KnownHang(
        (2, 29, 3),
        "on Arm a process waits forever once a list of its own has lost its entries, and the "
        "others wait for it",
        "https://github.com/marin-community/marin/pull/8038",
        machine="aarch64",
    ),
    KnownHang(
        (2, 29, 2),
        "with GPUDirect RDMA turned off on ConnectX-8",
        f"{_RELEASE}2.29.2-1",
        gpus=r"GB[23]00",
    ),
    KnownHang((2, 28, 9), "on many GPUs, by the order of two threads", f"{_RELEASE}2.28.9-1"),
    KnownHang(
        (2, 27, 3),
        "in all-to-all on more than 80 GPUs that NVLink joins between hosts",
        f"{_RELEASE}2.27.3-1",
        gpus=r"GB[23]00",
    ),
    KnownHang(
        (2, 26, 2),
        "in an abort, after an error of a network plug-in, and on hosts with different GPUs",
        f"{_RELEASE}2.26.2-1",
    ),
    KnownHang(
        (2, 24, 3),
        "with different processors in one job",
        f"{_RELEASE}2.24.3-1",
    ),
)


def numbers(version: str) -> tuple[int, int, int]:
    """``2.28.9`` as numbers; zeros for what is none."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def of(version: str, machine: str, gpus: str) -> list[KnownHang]:
    """The hangs that this version of NCCL may have here; ``gpus``: their names."""
    own = numbers(version)
    if own == (0, 0, 0):
        return []
    return [
        each
        for each in KNOWN
        if own < each.before
        and each.machine in ("", machine)
        and (not each.gpus or re.search(each.gpus, gpus))
    ]
