"""What the engine is given at its start: the C structure of ``native/api/python.h``, and ours."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

_Texts = ctypes.POINTER(ctypes.c_char_p)
_Ids = ctypes.POINTER(ctypes.c_int)


class COptions(ctypes.Structure):
    """`lockstep_options`."""

    _fields_ = [
        ("process", ctypes.c_int),
        ("num_processes", ctypes.c_int),
        ("num_agents", ctypes.c_int),
        ("labels", _Texts),
        ("arena_fd", ctypes.c_int),
        ("nonce", ctypes.c_uint64),
        ("timeout_seconds", ctypes.c_double),
        ("cores", ctypes.c_int),
        ("oversubscribed", ctypes.c_int),
        ("device_id_bytes", ctypes.c_int),
        ("no_members", ctypes.c_char_p),
        ("check_programs", ctypes.c_int),
        ("strict", ctypes.c_int),
        ("record", ctypes.c_int),
        ("recorder", ctypes.c_char_p),
        ("host", ctypes.c_char_p),
        ("attempt", ctypes.c_int),
        ("single_copy", ctypes.c_int),
        ("addresses", _Texts),
        ("pids", _Ids),
        ("listener", ctypes.c_int),
        ("key", ctypes.c_char_p),
        ("key_bytes", ctypes.c_int),
        ("key_is_drawn", ctypes.c_int),
        ("tls_library", ctypes.c_char_p),
        ("encrypt", ctypes.c_int),
        ("connections", ctypes.c_int),
        ("hosts", _Ids),
        ("algorithms", ctypes.c_char_p),
        ("ucx_libraries", _Texts),
        ("num_ucx_libraries", ctypes.c_int),
    ]


@dataclasses.dataclass(frozen=True)
class Network:
    """How the engine reaches the processes of other hosts."""

    addresses: Sequence[str]
    """Where each process listens, ``10.0.0.1:4411`` or ``[fd00::1]:4411``; "" on this host."""
    pids: Sequence[int]
    """The pids of the other processes of this host; 0 for this one and for those of other hosts."""
    hosts: Sequence[int]
    """A number of the host of each process; the same in all processes."""
    listener: int
    """A listening socket of this process, which the engine duplicates."""
    key: bytes = dataclasses.field(repr=False)
    """The processes that have it belong to the job; it must not be printed."""
    tls_library: str
    """OpenSSL's libssl, for dlopen."""
    encrypt: bool = True
    """Without it, TLS only proves that both ends have the key. The same in all processes."""
    connections: int = 1
    """To each process of another host, for stripes of large messages. The same in all processes."""
    ucx_libraries: Sequence[str] = ()
    """Where to look for UCX, which then carries the data. Empty: TCP does."""
    key_is_drawn: bool = False
    """Whether the launcher has drawn the key. Then a handshake that fails was changed."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What one process hands to its engine."""

    process: int
    labels: Sequence[str]
    """How errors name each process, by process id; behind them those of the agents."""
    arena_fd: int
    nonce: int
    """The same in all processes of the job."""
    timeout_seconds: float
    cores: int
    oversubscribed: bool
    device_id_bytes: int
    """0 when it is not known: every communicator request is then an error."""
    no_members: str
    """Sentences that end the error for a communicator request that cannot be read."""
    check_programs: bool
    """Compare which program a collective belongs to, and which place in it."""
    strict: bool
    """Compare the line of the user's program as well."""
    record: bool
    """Keep records; without them nothing but the engine's own checks remains."""
    recorder: str | None
    """Path of the recorder's file; None keeps the records in memory."""
    host: str
    attempt: int
    single_copy: bool
    """Large messages straight from the memory of other processes, where the system permits it."""
    network: Network | None
    """None where all processes are on one host."""
    algorithms: str = ""
    """``LOCKSTEP_ALGORITHMS``."""
    agents: int = 0
    """How many agents the job has: they are numbered behind the processes, and `process`, the
    addresses and the pids count them too."""

    def to_c(self) -> COptions:
        """Good for as long as the structure lives, which keeps all that it points to."""
        network = self.network
        return COptions(
            self.process,
            len(self.labels) - self.agents,
            self.agents,
            _texts(self.labels),
            self.arena_fd,
            self.nonce,
            self.timeout_seconds,
            self.cores,
            self.oversubscribed,
            self.device_id_bytes,
            self.no_members.encode(),
            self.check_programs,
            self.strict,
            self.record,
            self.recorder.encode() if self.recorder is not None else None,
            self.host.encode(),
            self.attempt,
            self.single_copy,
            _texts(network.addresses) if network else None,
            _numbers(network.pids) if network else None,
            network.listener if network else -1,
            network.key if network else None,
            len(network.key) if network else 0,
            network.key_is_drawn if network else False,
            network.tls_library.encode() if network else None,
            network.encrypt if network else True,
            network.connections if network else 1,
            _numbers(network.hosts) if network else None,
            self.algorithms.encode(),
            _texts(network.ucx_libraries) if network else None,
            len(network.ucx_libraries) if network else 0,
        )


def _texts(texts: Sequence[str]) -> ctypes._Pointer[ctypes.c_char_p]:
    array = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
    return ctypes.cast(array, _Texts)


def _numbers(numbers: Sequence[int]) -> ctypes._Pointer[ctypes.c_int]:
    return ctypes.cast((ctypes.c_int * len(numbers))(*numbers), _Ids)
