"""A PMI-1 server: lets the processes of an MPI job find each other under ``lockstep run``.

A process requests its rank and the number of processes from its launcher, over a socket that it
inherits (``PMI_FD``). Then the processes write their addresses to a common table, and read those of
the others after a barrier. MPICH and its derivatives use this protocol. A request and a response
are one line each, ``cmd=NAME key=value ...``; a process waits for the response before its next
request.

`Board` is the protocol, without sockets. `PmiServer` has one socket per process, and never waits.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket

_PAIR = re.compile(r"([\w/-]+)=((?:\\.|[^ \\])*)")
_LARGEST_REQUEST = 1 << 16

Reply = tuple[int, str]
"""A rank, and the response line for it."""


class Board:
    """The common table and the barrier of ``size`` processes on one host."""

    def __init__(self, size: int, name: str) -> None:
        """``name`` must be unique to the job: MPICH names its shared memory after it."""
        self._size = size
        self._name = name
        # The mapping has one block: from host 0 on, one host, with all ranks.
        self._table = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._waiting: set[int] = set()

    def answer(self, rank: int, request: str) -> list[Reply]:
        """The responses to a line of process ``rank``; the last at a barrier releases all."""
        values = dict(_PAIR.findall(request))
        command = values.get("cmd", "")
        if command == "barrier_in":
            return self._arrive(rank)
        if command == "abort":
            return []  # the process ends by itself, and the launcher sees that
        return [(rank, self._reply(command, values))]

    def _arrive(self, rank: int) -> list[Reply]:
        self._waiting.add(rank)
        if len(self._waiting) < self._size:
            return []
        arrived, self._waiting = sorted(self._waiting), set()
        return [(each, "cmd=barrier_out rc=0") for each in arrived]

    def _reply(self, command: str, values: dict[str, str]) -> str:
        match command:
            case "init":
                return "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
            case "get_maxes":
                return "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024"
            case "get_appnum":
                return "cmd=appnum rc=0 appnum=0"
            case "get_universe_size":
                return f"cmd=universe_size rc=0 size={self._size}"
            case "get_my_kvsname":
                return f"cmd=my_kvsname rc=0 kvsname={self._name}"
            case "put":
                self._table[values.get("key", "")] = values.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get":
                value = self._table.get(values.get("key", ""))
                if value is None:
                    return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
                return f"cmd=get_result rc=0 msg=success value={value}"
            case "finalize":
                return "cmd=finalize_ack rc=0"
            case _:
                return f"cmd={command or 'unknown'} rc=-1 msg=not_supported"


class PmiServer:
    """Serves ``size`` processes. The owner's loop watches `fd` and calls `serve`."""

    def __init__(self, size: int) -> None:
        self._board = Board(size, f"lockstep-{os.urandom(16).hex()}")
        pairs = [socket.socketpair() for _ in range(size)]
        self._ours = [ours for ours, _ in pairs]
        self._theirs = [theirs for _, theirs in pairs]
        self._unread = [b""] * size
        for ours in self._ours:
            ours.setblocking(False)

    def fd(self, rank: int) -> int:
        """The descriptor that is readable when process ``rank`` has sent a request."""
        return self._ours[rank].fileno()

    def inherited(self, rank: int) -> int:
        """The descriptor that process ``rank`` has to inherit."""
        return self._theirs[rank].fileno()

    def environ(self, rank: int) -> dict[str, str]:
        """The environment variables by which process ``rank`` finds this server."""
        return {
            "PMI_FD": str(self.inherited(rank)),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(len(self._ours)),
        }

    def started(self, rank: int) -> None:
        """Closes the inherited end of process ``rank``'s socket, so that its exit can be seen."""
        self._theirs[rank].close()

    def serve(self, rank: int) -> bool:
        """Reads and answers the pending requests; False: process ``rank`` has closed its end."""
        try:
            data = self._ours[rank].recv(_LARGEST_REQUEST)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        *lines, self._unread[rank] = (self._unread[rank] + data).split(b"\n")
        for line in lines:
            for to, reply in self._board.answer(rank, line.decode("utf-8", "surrogateescape")):
                # A process that has ended or does not read must not delay the others.
                with contextlib.suppress(OSError):
                    self._ours[to].send(f"{reply}\n".encode("utf-8", "surrogateescape"))
        return bool(data) and len(self._unread[rank]) <= _LARGEST_REQUEST

    def close(self) -> None:
        for end in (*self._ours, *self._theirs):
            end.close()
