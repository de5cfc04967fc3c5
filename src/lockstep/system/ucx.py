"""Finds UCX, which carries what the engine sends between hosts with ``--transport ucx``.

The engine opens the library itself, with what UCX needs at that moment in the environment. So no
process of a job opens it here.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from lockstep.system.subprocess_output import said_by

LIBRARY_VARIABLE = "LOCKSTEP_UCX_LIBRARY"
TRANSPORT_VARIABLE = "LOCKSTEP_TRANSPORT"
INSTALL = "sudo apt install libucx0 (Debian, Ubuntu), or pip install libucx-cu12"
INSTALL_NEW = "pip install libucx-cu12 and set LOCKSTEP_UCX_LIBRARY to its libucp.so.0"
MIN_VERSION = (1, 12)
"""The version of the interface in ``native/transport/ucx/ucp.h``."""
SEVERAL_NETWORKS = (1, 14)
"""Before, UCX has crashed when processes connected over several network interfaces with TCP."""
DEVICES_VARIABLE = "UCX_NET_DEVICES"
"""Where it is not set, such a version gets the job's interface, or all with InfiniBand."""

_SYSTEM = "libucp.so.0"
_IN_WHEEL = Path("lib") / _SYSTEM
_VERSION = """
import ctypes, sys
three = [ctypes.c_uint() for _ in range(3)]
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name).ucp_get_version(*map(ctypes.byref, three))
    except OSError:
        continue
    print(name, *(number.value for number in three), sep="\\n")
    break
"""


def candidates(chosen: str | None) -> list[str]:
    """Where the engine looks for libucp, in this order, if the user has not chosen one.

    The system's comes before that of the wheels, which have no InfiniBand (libucx-cu12 1.22).
    """
    return [chosen] if chosen else [_SYSTEM, *_wheel()]


def _wheel() -> list[str]:
    """The library of libucx-cu12 or libucx-cu13, which are both the package ``libucx``."""
    spec = importlib.util.find_spec("libucx")
    folders = (spec.submodule_search_locations if spec else None) or []
    paths = (Path(folder) / _IN_WHEEL for folder in folders)
    return [str(path) for path in paths if path.is_file()]


def has_rdma_device() -> bool:
    """Whether programs of this host can use a device of InfiniBand, RoCE or the like."""
    return any(Path("/dev/infiniband").glob("uverbs*"))


def found(chosen: str | None) -> tuple[str, tuple[int, int, int]] | None:
    """The library that a job would use, and its version; None where there is none.

    In a process of its own, where UCX's handlers do no harm.
    """
    lines = said_by(sys.executable, "-c", _VERSION, *candidates(chosen)).splitlines()
    if len(lines) != 4:
        return None
    major, minor, release = map(int, lines[1:])
    return lines[0], (major, minor, release)
