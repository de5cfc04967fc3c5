"""`lockstep.spawn` and `lockstep.Pool`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from lockstep import _config
from lockstep._errors import ConfigError, SpawnError
from lockstep.bootstrap import mpi_backend
from lockstep.launch import before_start
from lockstep.pool import hosts, messages, outcome, stalled_calls
from lockstep.pool.call import Call, wait_until_ready
from lockstep.pool.outcome import Kind, Outcome
from lockstep.pool.processes import PoolSpec, Processes
from lockstep.processes import failed_runs, tracebacks
from lockstep.system import oom

T = TypeVar("T")
_PROCESSES = 2
_MAX_REPR = 40


def spawn(
    fn: Callable[..., T],
    n: int | None = None,
    devices: int | None = 4,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    collectives: str | None = None,
    timeout: float | None = None,
    hosts: str | Sequence[str] = "",
    options: str = "",
) -> list[T]:
    """Calls ``fn(*args, **kwargs)`` on ``n`` new processes, which have joined one job.

    The processes begin as after `lockstep.initialize`, have this process's ``sys.path`` and
    environment, and end before this returns. For several calls use `Pool`.

    Args:
      fn: any function, also a lambda or one that was defined in a prompt; it and its arguments are
        sent by cloudpickle. The script of this process is not imported by the others, so it needs
        no ``if __name__ == "__main__"``.
      n: number of processes. Default: 2; with ``hosts``, one for each slot.
      devices: CPU devices of each process. Default: 4. None leaves the devices to JAX, as for GPUs.
      args: positional arguments, the same for each process, which knows its rank by
        `jax.process_index`.
      kwargs: keyword arguments.
      collectives: ``"lockstep"``, ``"gloo"`` or ``"mpi"``. Default: as LOCKSTEP_COLLECTIVES says,
        else ``"lockstep"``.
      timeout: seconds that the call may take, without the start. Default: None, no deadline; a
        collective has its own.
      hosts: where the processes run, as for `Pool`. Default: on this machine.
      options: as for `Pool`.

    Returns:
      What each process has returned, in the order of their ranks. Arrays of JAX become NumPy's.

    Raises:
      Exception: what ``fn`` has raised, with the traceback of its process as the cause. If several
        have failed it is the first failure, or that of the process which caused the fault; notes
        tell of the others.
      SpawnError: a process has died or could not start; or ``fn``, its arguments, its result, or
        what it has raised cannot be sent.
      SpawnTimeoutError: the call took longer than ``timeout``; with the Python stacks of the
        processes that had not returned.
      ConfigError: an argument has a bad value.
      LaunchError: there is no memory for so many processes, or no launcher can be started.
    """
    with Pool(n, devices, collectives=collectives, hosts=hosts, options=options) as pool:
        return pool.run(fn, args, kwargs, timeout)


class Pool:
    """Processes of one job that stay, so that a further call takes milliseconds.

        with lockstep.Pool(n=2, devices=4) as pool:
            pool.run(fn, (1, 2))

    What a call leaves behind in a process (modules, compiled programs, global variables) is there
    in the next. After an error the processes stay if they are sound: all have come back, and no
    collective has broken. Otherwise the next call starts new ones. No process outlives this one.

    Args:
      n: number of processes. Default: 2; with ``hosts``, one for each slot.
      devices: CPU devices of each process. Default: 4. None leaves the devices to JAX, as for GPUs.
      collectives: ``"lockstep"``, ``"gloo"`` or ``"mpi"``. Default: as LOCKSTEP_COLLECTIVES says,
        else ``"lockstep"``.
      env: variables to set in the processes.
      hosts: where the processes run: ``"a:4,b:4"`` or ``["a:4", "b:4"]``, names and slots as for
        ``lockstep run --hosts``. Default: on this machine. Each host is reached by ssh, and has the
        same directory, Python and packages.
      options: further options of ``lockstep run`` for hosts, such as ``"--interface eth1"``,
        ``"--ssh 'ssh -F FILE'"``, ``"--hostfile FILE"`` (instead of ``hosts``); and ``"--bind
        cores"`` and ``"--preload jax,scipy.linalg"``, as for ``lockstep run``. Default: on this
        machine, the kernel places processes, and each imports its own modules.

    Raises:
      ConfigError: an argument has a bad value.
      LaunchError: there is no memory for so many processes, or no launcher can be started.
    """

    def __init__(
        self,
        n: int | None = None,
        devices: int | None = 4,
        *,
        collectives: str | None = None,
        env: Mapping[str, str] | None = None,
        hosts: str | Sequence[str] = "",
        options: str = "",
    ) -> None:
        self._begin(_layout(n, devices, collectives, env or {}, hosts, options))

    @classmethod
    def of(cls, layout: PoolSpec) -> Pool:
        """The processes of ``layout``; for `lockstep.bench`."""
        pool = cls.__new__(cls)
        pool._begin(layout)
        return pool

    def _begin(self, layout: PoolSpec) -> None:
        self._layout = layout
        if not self._layout.hosts:
            before_start.check_memory(self._layout.processes, oom.free_memory())
        self._lock = threading.Lock()
        self._calls = 0
        self._is_closed = False
        self._finalizer: weakref.finalize | None = None
        self._processes: Processes | None = None
        self._is_ready = False
        self._start()

    def run(
        self,
        fn: Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> list[T]:
        """Calls ``fn(*args, **kwargs)`` on all processes; arguments and errors as for `spawn`.

        Calls of several threads come one after the other.
        """
        outcomes, diagnosis, culprits = self._run(fn, args, kwargs, timeout)
        if all(outcome.kind is Kind.RETURNED for outcome in outcomes):
            return [outcome.value for outcome in outcomes]
        full = _config.current().full_tracebacks or tracebacks.jax_shows_all(os.environ)
        raise outcome.error_of(outcomes, culprits, diagnosis, full)

    def outcomes(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        patient: bool = False,
    ) -> tuple[list[Outcome], str]:
        """How the call ended on each process, and what the records show; for `lockstep.testing`.

        ``patient``: the failure of one process sets no deadline for the others.
        """
        outcomes, diagnosis, _ = self._run(fn, args, kwargs, timeout, patient)
        return outcomes, diagnosis or ""

    def wait(self, seconds: float) -> None:
        """Returns once all processes have joined the job. Raises `SpawnError`, also after so many
        seconds."""
        with self._lock:
            self._ready(seconds)

    def close(self, at_once: bool = False) -> None:
        """Ends the processes; a second call does nothing.

        Args:
          at_once: kills them, without their exit handlers. Default: False.
        """
        with self._lock:
            self._is_closed = True
            self._stop(at_once)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(at_once=kind is not None)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, in the order of their ranks; empty before the first call and
        between an error and the next call, where there are none that have joined."""
        with self._lock:
            found = self._processes.pids if self._processes and self._is_ready else {}
            return [found[rank] for rank in sorted(found)]

    # One call

    def _run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        timeout: float | None,
        patient: bool = False,
    ) -> tuple[list[Outcome], str | None, Sequence[int]]:
        """How the call ended on each process, what the records show, and the culprits."""
        if timeout is not None and not timeout > 0:
            known = "expected a number of seconds above 0, or None."
            raise ConfigError(f"timeout={timeout!r}: {known}")
        payload = _payload(fn, args, kwargs or {})
        with self._lock:
            processes = self._ready()
            self._calls += 1
            call = Call(processes, self._calls, timeout, patient)
            try:
                outcomes = call.run(payload)
                return outcomes, *self._diagnosed(call, outcomes)
            finally:  # also after Ctrl-C
                if not self._is_sound(call):
                    self._stop(at_once=True)

    def _diagnosed(
        self, call: Call, outcomes: Sequence[Outcome]
    ) -> tuple[str | None, Sequence[int]]:
        assert self._processes is not None
        if all(outcome.kind is Kind.RETURNED for outcome in outcomes):
            return None, ()
        self._processes.refresh()
        run_dir = self._processes.run_dir
        broken = any(o.kind is Kind.LOST or o.aborted for o in outcomes)
        if call.verdict or not broken:
            return call.verdict, ()
        return failed_runs.diagnosis(run_dir, 0), failed_runs.culprits(run_dir, 0)

    def _is_sound(self, call: Call) -> bool:
        """Whether the processes can be used for another call."""
        outcomes = call.outcomes
        if len(outcomes) < self._layout.processes or self._processes is None or call.verdict:
            return False
        if any(outcome.aborted for outcome in outcomes):
            return False  # the function may have caught the engine's error
        if all(outcome.kind is Kind.RETURNED for outcome in outcomes):
            return True
        if any(outcome.kind in (Kind.LOST, Kind.STUCK) for outcome in outcomes):
            return False
        if self._layout.processes > 1 and not self._processes.has_records:
            return False  # there are no records that show a collective in flight
        if any(o.failure.is_jax for o in outcomes if o.failure):
            return False
        return stalled_calls.becomes_quiet(self._processes.run_dir, self._processes.refresh)

    # The processes

    def _start(self) -> None:
        self._processes = Processes(self._layout)
        self._is_ready = False
        self._finalizer = weakref.finalize(self, self._processes.close, True)

    def _ready(self, seconds: float | None = None) -> Processes:
        if self._is_closed:
            raise SpawnError("the pool is closed")
        if self._processes is None or self._processes.lost or self._processes.is_over:
            self._stop(at_once=True)
            self._start()
        assert self._processes is not None
        if not self._is_ready:
            try:
                # The processes have the same deadline for their start, and better words for it.
                limit = 1.25 * _config.current().start_timeout
                wait_until_ready(self._processes, limit if seconds is None else seconds)
            except BaseException:
                self._stop(at_once=True)
                raise
            self._is_ready = True
        return self._processes

    def _stop(self, at_once: bool) -> None:
        processes, self._processes = self._processes, None
        if self._finalizer:
            self._finalizer.detach()
        if processes:
            # Processes that still start have no exit handlers to wait for.
            processes.close(at_once or not self._is_ready)


def _layout(
    n: int | None,
    devices: int | None,
    collectives: str | None,
    env: Mapping[str, str],
    names: str | Sequence[str],
    options: str,
) -> PoolSpec:
    for name, value in (("n", n), ("devices", devices)):
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}={value!r}: expected a whole number, 1 or more.")
    if collectives is not None and collectives not in _config.COLLECTIVES:
        known = ", ".join(_config.COLLECTIVES)
        raise ConfigError(f"collectives={collectives!r}: expected one of {known}.")
    environ = {**os.environ, **env}
    chosen = collectives or _config.Config.from_environ(environ).collectives
    if chosen == "mpi" and (names or options):
        raise ConfigError(
            "collectives='mpi' on several hosts: an MPI library is started by its own launcher."
        )
    if chosen == "mpi":  # one error here instead of one from each process
        mpi_backend.check_devices(devices or 1)
        mpi_backend.find(environ)
    platform = None if devices is None or environ.get("JAX_PLATFORMS") else "cpu"
    words, labels = hosts.parse(names, options, n)
    count = len(labels) or n or _PROCESSES
    return PoolSpec(count, devices, platform, chosen, dict(env), words, labels)


def _payload(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    if not callable(fn):
        raise TypeError(f"the first argument must be a function, not {type(fn).__name__}")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a tuple, not {type(args).__name__}: args=({_short(args)},)")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, not {type(kwargs).__name__}")
    try:
        return messages.dumps_call(fn, tuple(args), dict(kwargs))
    except Exception as error:
        raise SpawnError(
            f"the function or its arguments cannot be sent to the processes: "
            f"{type(error).__name__}: {error}"
        ) from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_REPR and "\n" not in text else "..."
