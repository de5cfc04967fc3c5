"""Runs a command in which system calls fail with EPERM, as under a container's seccomp profile.

python forbid_calls.py 310,434 COMMAND...      their numbers on this machine
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Instructions of the filter (linux/bpf_common.h)."""
_ALLOW, _ERRNO, _EPERM = 0x7FFF0000, 0x00050000, 1
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2


def forbid(numbers: Sequence[int]) -> None:
    """From now on these calls fail, in this process and in all that it starts."""
    code = [(_LOAD, 0, 0, 0)]  # the number of the call
    code += [(_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(packed))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_NO_NEW_PRIVS, 1, 0), (_SECCOMP, _FILTER, ctypes.create_string_buffer(program))):
        if libc.prctl(*call, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid([int(number) for number in sys.argv[1].split(",")])
    os.execvp(sys.argv[2], sys.argv[2:])
