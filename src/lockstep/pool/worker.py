"""The program of each process of a pool: waits for functions, calls them, sends what they return.

The main thread calls the functions, because some libraries and signal handlers need it. A second
thread receives: so the caller can abort a collective in which the main thread waits.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from lockstep import _config, _run_files
from lockstep._errors import SpawnError
from lockstep._run_files import ErrorRecord
from lockstep.pool import messages
from lockstep.pool.outcome import Failure
from lockstep.pool.output import mark
from lockstep.system import stack_dump, unix_socket
from lockstep.system.channel import TRUSTED, Channel, Message

_SAME_INTERRUPT_SECONDS = 1.0


class _Worker:
    def __init__(self, config: _config.Config) -> None:
        self._rank = config.process_id or 0
        self._engine = config.collectives == "lockstep"
        connected = unix_socket.connect(Path(config.run_dir or ""), messages.SOCKET)
        self._channel = Channel.of(connected, TRUSTED)
        self._stacks = Path(config.own_dir or "", stack_dump.FILE)
        self._sending = threading.Lock()
        self._running: int | None = None
        """The call in the main thread."""
        self._interrupted_at = float("-inf")
        self._stopping = Path(config.run_dir or "", _run_files.STOPPING)
        self._calls: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # A function may redirect the descriptors 1 and 2, as pytest does.
        self._streams = (os.dup(1), os.dup(2))

    def serve(self) -> None:
        """Serves the caller until it closes the connection."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(target=self._receive, name="lockstep-pool", daemon=True).start()
        self._send("hello", rank=self._rank, pid=os.getpid())
        while message := self._calls.get():
            if message.kind == "start":
                self._start(message)
            else:
                self._call(message.head["number"], message.body)

    def _receive(self) -> None:
        while message := self._channel.next():
            self._on_message(message)
        self._calls.put(None)

    def _on_message(self, message: Message) -> None:
        if message.kind == "abort":
            self._abort(message.head["text"])
        elif message.kind == "interrupt":
            self._interrupt(message.head["number"])
        elif message.kind == "stacks":
            self._send("stacks", text=stack_dump.request(os.getpid(), self._stacks))
        else:
            self._calls.put(message)

    def _interrupt(self, number: int) -> None:
        """Raises KeyboardInterrupt in the function of call ``number``."""
        if self._running == number:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _on_interrupt(self, *_: Any) -> None:
        """VS Code's interrupt of a notebook comes to every process, and then from the caller.

        Both are one interrupt, of the function alone. A launcher that stops the job uses SIGINT
        too.
        """
        now = time.monotonic()
        is_first = now >= self._interrupted_at + _SAME_INTERRUPT_SECONDS
        if is_first and (self._running is not None or self._stopping.exists()):
            self._interrupted_at = now
            raise KeyboardInterrupt

    def _abort(self, text: str) -> None:
        if self._engine and "jax" in sys.modules:
            from lockstep.engine import bindings

            bindings.abort(text)

    def _start(self, message: Message) -> None:
        try:
            import lockstep

            path = pickle.loads(message.body)
            # Python may lie somewhere else on another host.
            own = sys.path if message.head["elsewhere"] else []
            sys.path[:] = [*path, *(each for each in own if each not in path)]
            if message.head["joins"]:
                lockstep.initialize()
        except Exception as error:
            self._send("raised", messages.dumps(self._failure(error)))
        else:
            self._send("ready")

    def _call(self, number: int, payload: bytes) -> None:
        try:
            value = self._value(number, payload)
            state = {"aborted": self._abort_text(), "at": time.monotonic()}
            kind, body = "returned", messages.dumps_result(value)
        except BaseException as error:  # also sys.exit: the process lives on
            state = {"aborted": self._abort_text(), "at": time.monotonic()}
            kind, body = "raised", messages.dumps(self._failure(error))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for fd in self._streams:
            with contextlib.suppress(OSError):
                os.write(fd, mark(number))
        self._send(kind, body, number=number, **state)

    def _value(self, number: int, payload: bytes) -> Any:
        try:
            function, args, kwargs = pickle.loads(payload)
        except Exception as error:
            raise SpawnError(
                f"process {self._rank} cannot load the function and its arguments: "
                f"{type(error).__name__}: {error}. A function of a module is imported, from this "
                "program's sys.path: put the module there, or call "
                "cloudpickle.register_pickle_by_value(module) before"
            ) from error
        self._running = number
        try:
            try:
                return function(*args, **kwargs)
            finally:
                _finish_computations()
        finally:
            self._running = None

    def _failure(self, error: BaseException) -> Failure:
        happened = time.monotonic()
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        if isinstance(error, SystemExit):
            summary = f"sys.exit({error.code!r})"
        text = "".join(traceback.format_exception(error))
        record = ErrorRecord(happened, 1, (summary.splitlines() or [""])[0], text)
        return Failure(record, _pickled(error), _is_jax(error))

    def _abort_text(self) -> str:
        if not self._engine or "jax" not in sys.modules:
            return ""
        from lockstep.engine import bindings

        return bindings.abort_text()

    def _send(self, kind: str, body: bytes = b"", **values: Any) -> None:
        try:
            with self._sending:
                self._channel.send(kind, body, **values)
                self._channel.flush(messages.SEND_SECONDS)
        except OSError:
            # The caller has gone, or did not read: after a part of a message nothing else can come.
            os._exit(1)


def _pickled(error: BaseException) -> bytes | None:
    """The exception, where it can be pickled and loaded again."""
    try:
        data = messages.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


def _is_jax(error: BaseException) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(error, jax.errors.JaxRuntimeError)


def _finish_computations() -> None:
    """Waits for what the function has dispatched: a process that has returned computes no more.

    So the caller may say that another one waits for it in vain. Errors come where the arrays are
    used.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):
            array.block_until_ready()


if __name__ == "__main__":
    _Worker(_config.current()).serve()
