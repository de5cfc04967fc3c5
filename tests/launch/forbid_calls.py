"""Runs a command in which system calls fail with EPERM, as under a container's seccomp profile.

python forbid_calls.py 310,434 COMMAND...      their numbers on this machine
python forbid_calls.py 49:28 COMMAND...        bind() of an address with more than 28 bytes: such a
                                               one has a path, that of a Unix socket
python forbid_calls.py 73=95 COMMAND...        with another error, ENOTSUP
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

_LOAD, _EQUAL, _GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
"""Instructions of the filter (linux/bpf_common.h)."""
_THIRD_ARGUMENT = 16 + 2 * 8
"""Where it stands in what the filter reads (linux/seccomp.h): its lower half."""
_ALLOW, _ERRNO, _EPERM = 0x7FFF0000, 0x00050000, 1
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2


def rule(text: str) -> list[tuple[int, int, int, int]]:
    """The instructions that refuse what ``NUMBER[:BYTES][=ERROR]`` names, and let others pass."""
    call, _, error = text.partition("=")
    number, _, size = call.partition(":")
    refuse = (_RETURN, 0, 0, _ERRNO | int(error or _EPERM))
    if not size:
        return [(_EQUAL, 0, 1, int(number)), refuse]
    third = (_LOAD, 0, 0, _THIRD_ARGUMENT)
    again = (_LOAD, 0, 0, 0)
    return [(_EQUAL, 0, 4, int(number)), third, (_GREATER, 0, 1, int(size)), refuse, again]


def forbid(rules: Sequence[str]) -> None:
    """From now on these calls fail, in this process and in all that it starts."""
    code = [(_LOAD, 0, 0, 0)]  # the number of the call
    for each in rules:
        code += rule(each)
    code += [(_RETURN, 0, 0, _ALLOW)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(packed))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_NO_NEW_PRIVS, 1, 0), (_SECCOMP, _FILTER, ctypes.create_string_buffer(program))):
        if libc.prctl(*call, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
