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
from lockstep.pool import channel
from lockstep.pool.outcome import Failure
from lockstep.pool.output import mark
from lockstep.system import stack_dump

_SAME_INTERRUPT_SECONDS = 1.0


class _Worker:
    def __init__(self, config: _config.Config) -> None:
        self._rank = config.process_id or 0
        self._engine = config.collectives == "lockstep"
        self._channel = channel.Channel(channel.connect(Path(config.run_dir or "")))
        self._stacks = _run_files.process_dir(
            Path(config.run_dir or ""), config.attempt, self._rank
        )
        self._sending = threading.Lock()
        self._running: int | None = None
        """The call in the main thread."""
        self._interrupted_at = float("-inf")
        self._stopping = Path(config.run_dir or "", _run_files.STOPPING)
        self._calls: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        # A function may redirect the descriptors 1 and 2, as pytest does.
        self._streams = (os.dup(1), os.dup(2))

    def serve(self) -> None:
        """Serves the caller until it closes the connection."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(
            target=channel.receive_into,
            args=(self._channel, self._on_message, lambda: self._calls.put(None)),
            name="lockstep-pool",
            daemon=True,
        ).start()
        self._channel.send(channel.dumps("hello", self._rank, os.getpid()))
        while message := self._calls.get():
            kind, *values = message
            reply = self._start(*values) if kind == "start" else self._call(*values)
            self._send(reply)

    def _on_message(self, message: bytes) -> None:
        kind, *values = pickle.loads(message)
        if kind == "abort":
            self._abort(*values)
        elif kind == "interrupt":
            self._interrupt(*values)
        elif kind == "stacks":
            text = stack_dump.request(os.getpid(), self._stacks / stack_dump.FILE)
            self._send(channel.dumps("stacks", text))
        else:
            self._calls.put((kind, *values))

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

    def _start(self, path: list[str], is_elsewhere: bool) -> bytes:
        try:
            import lockstep

            # On another host Python may lie somewhere else.
            own = sys.path if is_elsewhere else []
            sys.path[:] = [*path, *(each for each in own if each not in path)]
            lockstep.initialize()
            return channel.dumps("ready")
        except Exception as error:
            return channel.dumps("raised", 0, self._failure(error), "", time.monotonic())

    def _call(self, number: int, payload: bytes) -> bytes:
        try:
            value = self._value(number, payload)
            state = (self._abort_text(), time.monotonic())
            reply = channel.dumps_result("returned", number, value, *state)
        except BaseException as error:  # also sys.exit: the process lives on
            state = (self._abort_text(), time.monotonic())
            reply = channel.dumps("raised", number, self._failure(error), *state)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for fd in self._streams:
            with contextlib.suppress(OSError):
                os.write(fd, mark(number))
        return reply

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

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._channel.send(message)
        except OSError:
            # The caller has gone, or did not read: after a part of a message nothing else can come.
            os._exit(1)


def _pickled(error: BaseException) -> bytes | None:
    """The exception, where it can be pickled and loaded again."""
    try:
        data = channel.dumps(error)
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
