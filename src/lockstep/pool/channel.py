"""Messages between the caller's process and a process of its pool, over a Unix socket.

The socket lies in the private directory of the run, which other users cannot enter; on another host
in that of the host, from where `lockstep.hosts.relay` leads here. A message is a tuple that
`cloudpickle` has pickled, with its length in front.
"""

from __future__ import annotations

import contextlib
import functools
import io
import socket
import struct
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep._errors import LaunchError, SpawnError
from lockstep.hosts.relay import short_path

if TYPE_CHECKING:
    import cloudpickle

SOCKET = "pool"
SEND_SECONDS = 60.0
"""Seconds that the other side may take to read a message: its reader only waits for the GIL."""
_LENGTH = struct.Struct("!Q")
_PIECE = 1 << 20


class Channel:
    """One end of a connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        # A deadline of the kernel's, for sending only: a process reads in a thread of its own.
        limit = struct.pack("ll", int(SEND_SECONDS), 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._received = bytearray()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Sends a pickled message; raises OSError where the other side does not read it."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def read(self) -> Iterator[bytes]:
        """Receives what is available, waiting for a first byte, and yields each whole message.

        At the end of the connection `closed` is set.
        """
        try:
            data = self._socket.recv(_PIECE)
        except OSError:
            data = b""
        self.closed |= not data
        self._received += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message

    def shutdown(self) -> None:
        """Tells the other side that no more messages come."""
        self._socket.shutdown(socket.SHUT_WR)

    def break_off(self) -> None:
        """Ends the connection in both directions: both sides read its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def listen(run_dir: Path) -> socket.socket:
    """Listens for the processes of the run; raises `LaunchError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(run_dir) as path:
            listener.bind(f"{path}/{SOCKET}")
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise LaunchError(f"no socket can be made in {run_dir}: {error.strerror}.") from error
    return listener


def connect(run_dir: Path) -> socket.socket:
    """Connects to the process that listens in ``run_dir``; raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(run_dir) as path:
            connected.connect(f"{path}/{SOCKET}")
    except OSError:
        connected.close()
        raise
    return connected


def dumps(*message: Any) -> bytes:
    """The message, pickled: functions of ``__main__`` and lambdas by value."""
    return _pickled(_pickler(), message)


def _pickled(pickler: type[cloudpickle.Pickler], message: tuple[Any, ...]) -> bytes:
    file = io.BytesIO()
    pickler(file).dump(message)
    return file.getvalue()


@functools.cache
def _pickler() -> type[cloudpickle.Pickler]:
    """cloudpickle's pickler, and the file of each function: tracebacks and diagnoses name it.

    cloudpickle 3.1.3 sends "<dynamic-code>" instead of it.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                reduced: Any = self.dispatch_table[types.CodeType](obj)
                return _build_code, (*reduced, obj.co_filename)
            return super().reducer_override(obj)

    return Pickler


def _build_code(
    build: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str
) -> types.CodeType:
    return build(*parts).replace(co_filename=file)


def dumps_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """A function and its arguments, pickled; raises what pickling raises.

    A function of a module is sent by its name, unless only this process has the module: one that
    pytest or a notebook has imported by itself.
    """
    import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _can_be_imported(module.__name__):
        return dumps(function, args, kwargs)
    cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(function, args, kwargs)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    parts = name.split(".")
    path: Any = None
    for i in range(len(parts)):
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (find(".".join(parts[: i + 1]), path) for find in finders if find)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def dumps_result(*message: Any) -> bytes:
    """Like `dumps`, with each `jax.Array` as a NumPy array: the caller needs no JAX.

    Raises `SpawnError` for what cannot be sent.
    """
    import jax
    import numpy as np

    class Pickler(_pickler()):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, jax.Array) and not jax.numpy.issubdtype(
                obj.dtype, jax.dtypes.prng_key
            ):
                if not (obj.is_fully_addressable or obj.is_fully_replicated):
                    raise SpawnError(
                        f"the result has an array that is spread over processes ({obj.sharding}): "
                        "no process has all of it. Return what each process has "
                        "(x.addressable_shards), or the whole "
                        "(jax.experimental.multihost_utils.process_allgather(x, tiled=True))"
                    )
                return np.asarray(obj).__reduce_ex__(4)
            return super().reducer_override(obj)

    try:
        return _pickled(Pickler, message)
    except SpawnError:
        raise
    except Exception as error:
        raise SpawnError(
            f"the result cannot be sent to the caller: {type(error).__name__}: {error}. Return "
            "numbers, texts, arrays, or containers of these"
        ) from error


def receive_into(
    channel: Channel, handle: Callable[[bytes], None], at_end: Callable[[], None]
) -> None:
    """Passes each message to ``handle`` until the connection ends; a thread runs this."""
    while not channel.closed:
        for message in channel.read():
            handle(message)
    at_end()
