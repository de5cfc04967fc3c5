"""Handles the loss of the connection to JAX's coordination service.

jaxlib's client then calls its ``missed_heartbeat_callback``; by default this ends the process by
SIGABRT, before Python can raise or save anything. A Python callback would be called with an
``absl::Status``, which jaxlib cannot convert for Python, so C++ throws ``std::bad_cast`` instead of
calling it (in jaxlib 0.8.0, 0.10.2 and 0.12.0.1). Lockstep uses both consequences:

- While the client connects, on a Python thread, the exception arrives as
  ``RuntimeError("std::bad_cast")`` (`is_uncast`).
- Later, on a thread of jaxlib, the exception is not caught, and C++ calls the terminate handler.
  Lockstep's handler reports the loss of the service, and never returns: the thread has not been
  unwound and holds the lock of a client that is no longer needed. Other exceptions are passed on to
  the handler that was installed before.

A jaxlib that can convert the status calls the callback instead, which does the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from lockstep._jax_compat import hooks

_LIBRARY = "libstdc++.so.6"
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_BAD_CAST = "_ZTISt8bad_cast"
_HANDLER = ctypes.CFUNCTYPE(None)

_POLL_SECONDS = 0.1

_react: Callable[[], None] | None = None
_lost = threading.Event()


def is_uncast(error: BaseException) -> bool:
    """Whether JAX's client raised this because it cannot connect."""
    return "bad_cast" in str(error)


def callback(react: Callable[[], None]) -> Callable[..., None] | None:
    """A ``missed_heartbeat_callback`` that calls ``react``; None: keep JAX's default."""
    global _react
    _lost.clear()  # the process may have left an earlier job
    if not _take_over_terminate():
        hooks.report(
            "loss of the coordination service",
            "when JAX's coordination service ends before the job, JAX aborts the processes.",
            "jaxlib does not use the system's C++ library",
        )
        return None
    _react = react

    def lose(*_: object) -> None:
        _lost.set()
        react()

    return lose


def give_up() -> None:
    """No call waits for the service any more: its host is out of reach."""
    _lost.set()


class _Call:
    """A call of a method of JAX's client."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.over = threading.Event()
        self._returned: Any = None
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._returned = self._call()
        except BaseException as error:
            self._raised = error

    def result(self) -> Any:
        if self._raised is not None:
            raise self._raised
        return self._returned


_idle: list[queue.SimpleQueue[_Call]] = []
"""What each thread that has no call to make is waiting for."""
os.register_at_fork(after_in_child=_idle.clear)


def ending(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls a method of JAX's client; raises `ConnectionError` when the service is lost.

    After the loss, the thread in the terminate handler holds the client's lock forever, so calls do
    not return. Therefore each call is made on another thread. That thread makes later calls too,
    because Python 3.12 starts no thread any more when the exit handlers run.
    """
    call = _Call(functools.partial(method, *args, **options))
    _hand_over(call)
    _wait(call, math.inf)
    return call.result()


class Bounded:
    """Calls methods of JAX's client, each for ``seconds`` at most, then raises `TimeoutError`.

    The call goes on, and no other is made until the service has answered it: a caller that has more
    to do waits once for a service that is out of reach.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._unanswered: _Call | None = None

    def __call__(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._unanswered is None or self._unanswered.over.is_set():
            self._unanswered = _Call(functools.partial(method, *args, **options))
            _hand_over(self._unanswered)
            _wait(self._unanswered, self._seconds)
            if self._unanswered.over.is_set():
                return self._unanswered.result()
        raise TimeoutError("JAX's coordination service does not answer")


def _wait(call: _Call, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not call.over.wait(min(left, _POLL_SECONDS)):
        if _lost.is_set():
            raise ConnectionError("UNAVAILABLE: JAX's coordination service is lost")


def _hand_over(call: _Call) -> None:
    try:
        calls = _idle.pop()
    except IndexError:
        calls = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(calls,), name="lockstep-store", daemon=True)
        thread.start()
    calls.put(call)


def _work(calls: queue.SimpleQueue[_Call]) -> None:
    while True:
        call = calls.get()
        call.run()
        # The thread is free before its caller goes on, so the next call starts no other one.
        _idle.append(calls)
        call.over.set()
        del call  # and what it holds


@functools.cache
def _take_over_terminate() -> bool:
    """Installs Lockstep's terminate handler at the first call; False: that is not possible."""
    path = _mapped()
    if not path:
        return False
    try:
        library = ctypes.CDLL(path)
        set_terminate = library[_SET_TERMINATE]
        exception_type = library.__cxa_current_exception_type
        bad_cast = ctypes.addressof(ctypes.c_char.in_dll(library, _BAD_CAST))
    except (OSError, AttributeError, ValueError):
        return False
    set_terminate.restype = exception_type.restype = ctypes.c_void_p
    set_terminate.argtypes = [ctypes.c_void_p]
    before: list[int] = []

    def terminate() -> None:
        if _react is None or exception_type() != bad_cast:
            _HANDLER(before[0])()
            return
        try:
            _lost.set()
            _react()
        finally:
            _stay_for_good()

    handler = _HANDLER(terminate)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))  # C++ keeps its address to the end
    before.append(set_terminate(ctypes.cast(handler, ctypes.c_void_p)))
    return True


def _mapped() -> str:
    """The C++ library that jaxlib uses; "": it is linked into jaxlib."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if _LIBRARY in line:
                return line.split(maxsplit=5)[5].rstrip("\n")
    return ""


def _stay_for_good() -> NoReturn:
    # No signal may end the wait: Python would then run here, perhaps while it is finalized.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pause: Any = ctypes.CDLL(None).pause
    while True:
        pause()
