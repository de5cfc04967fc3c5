"""Every ``LOCKSTEP_*`` environment variable, parsed once.

The launcher writes these variables (`Config.to_environ`), and the processes that it starts read
them (`current`). No other module, and no part of the engine, reads settings from the environment. A
user may set any of them; the error for a bad value names the valid ones.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep._errors import ConfigError

COLLECTIVES = ("lockstep", "gloo", "mpi")
TRANSPORTS = ("tcp", "ucx")
CHECKS_OF_PROGRAMS = ERROR, WARN, OFF = ("error", "warn", "off")
MAX_CONNECTIONS = 8
"""To one process: `Stripes::kMaxConnections` of the engine."""
DEFAULT_COLLECTIVE_TIMEOUT = 600.0
DEFAULT_STALL_WARNING = 30.0
DEFAULT_START_TIMEOUT = 120.0
DEFAULT_REACH_TIMEOUT = 10.0
DEFAULT_CHECK_TIMEOUT = 8.0
DEFAULT_CHECK_REPLICAS = 100


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return parse


def natural(text: str, least: int = 0) -> int:
    """The number in ``text``; raises ValueError with what is expected, as `positive` and `seconds`
    do."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"a whole number, {least} or more")
    return value


def positive(text: str) -> int:
    return natural(text, 1)


def connection_count(text: str) -> int:
    value = natural(text) if text.isdigit() else 0
    if not 1 <= value <= MAX_CONNECTIONS:
        raise ValueError(f"a whole number from 1 to {MAX_CONNECTIONS}")
    return value


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a number of seconds, 0 or more")
    return value


def some_seconds(text: str) -> float:
    """The limit of a wait that needs an end: a number of seconds above 0."""
    try:
        value = seconds(text)
    except ValueError:
        value = 0.0
    if value < 1:
        raise ValueError("a number of seconds, 1 or more")
    return value


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def check_of_programs(text: str) -> str:
    choices = {ERROR: ERROR, WARN: WARN, OFF: OFF, "1": ERROR, "0": OFF}
    if text not in choices:
        raise ValueError(f"one of {', '.join(CHECKS_OF_PROGRAMS)}")
    return choices[text]


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("HOST:PORT")
    return text


def _text(text: str) -> str:
    return text


@dataclasses.dataclass(frozen=True)
class Link:
    """What collectives cost, as ``50us,4GB/s``."""

    latency: float
    """Seconds of a small one."""
    rate: float
    """Bytes per second that a device gathers in a large one."""

    @classmethod
    def parse(cls, text: str) -> Link:
        found = re.fullmatch(r"(\d+\.?\d*)us,(\d+\.?\d*)GB/s", text)
        link = cls(float(found[1]) / 1e6, round(float(found[2]) * 1e9)) if found else cls(0, 0)
        if not (link.latency and link.rate):
            raise ValueError("a latency and a rate, both above 0, such as 50us,4GB/s")
        return link

    def __str__(self) -> str:
        return f"{_decimal(self.latency * 1e6)}us,{_decimal(self.rate / 1e9)}GB/s"


def _decimal(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _path(text: str) -> str:
    """An absolute path, because the process may change its working directory later."""
    return os.path.abspath(os.path.expanduser(text)) if text else ""


def _variable(name: str, parse: Callable[[str], Any], default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"name": name, "parse": parse})


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """The settings from the environment. ``None`` means that the variable is not set."""

    collectives: str = _variable("LOCKSTEP_COLLECTIVES", _one_of(*COLLECTIVES), "lockstep")
    """Which implementation moves the data between processes on CPUs."""
    coordinator: str | None = _variable("LOCKSTEP_COORDINATOR", _address)
    """``HOST:PORT`` of JAX's coordination service."""
    num_processes: int | None = _variable("LOCKSTEP_NUM_PROCESSES", positive)
    process_id: int | None = _variable("LOCKSTEP_PROCESS_ID", natural)
    local_process_id: int | None = _variable("LOCKSTEP_LOCAL_PROCESS_ID", natural)
    """Index of this process among those of its host."""
    local_num_processes: int | None = _variable("LOCKSTEP_LOCAL_NUM_PROCESSES", positive)
    num_hosts: int | None = _variable("LOCKSTEP_NUM_HOSTS", positive)
    """On how many hosts one ``lockstep run --hosts`` has started all processes of the job."""
    auto_init: bool = _variable("LOCKSTEP_AUTO_INIT", _switch, False)
    """Call ``lockstep.initialize()`` before the program starts."""
    collective_timeout: float = _variable(
        "LOCKSTEP_COLLECTIVE_TIMEOUT", seconds, DEFAULT_COLLECTIVE_TIMEOUT
    )
    """Seconds that one collective may wait for the other processes; 0 means no deadline."""
    stall_warning: float = _variable("LOCKSTEP_STALL_WARNING", seconds, DEFAULT_STALL_WARNING)
    """Seconds after which a wait is reported, once; 0 means never."""
    start_timeout: float = _variable("LOCKSTEP_START_TIMEOUT", seconds, DEFAULT_START_TIMEOUT)
    """Seconds that the processes may take to join the job; 0 means no deadline."""
    reach_timeout: float = _variable("LOCKSTEP_REACH_TIMEOUT", some_seconds, DEFAULT_REACH_TIMEOUT)
    """Seconds that a host may take until its agent answers the launcher."""
    check_timeout: float = _variable("LOCKSTEP_CHECK_TIMEOUT", some_seconds, DEFAULT_CHECK_TIMEOUT)
    """Seconds that a host may take for one answer in the checks before a start on several hosts."""
    strict: bool = _variable("LOCKSTEP_STRICT", _switch, False)
    """Check that all members call a collective from the same line; see docs/reference/faults.md."""
    check_replicas: int = _variable("LOCKSTEP_CHECK_REPLICAS", natural, 0)
    """Compare the copies of a program's arguments at its first call and each so many later; 0:
    never."""
    check_programs: str = _variable("LOCKSTEP_CHECK_PROGRAMS", check_of_programs, ERROR)
    """What to do where the processes run programs together that differ."""
    record: bool = _variable("LOCKSTEP_RECORD", _switch, True)
    """Record collectives and watch the job: find processes that diverge, die or stall."""
    full_tracebacks: bool = _variable("LOCKSTEP_FULL_TRACEBACKS", _switch, False)
    """Show the frames of libraries in tracebacks."""
    single_copy: bool = _variable("LOCKSTEP_SINGLE_COPY", _switch, True)
    """Read large messages straight from other processes' memory, where the system permits it."""
    encryption: bool = _variable("LOCKSTEP_ENCRYPTION", _switch, True)
    """Encrypt what the engine sends between hosts; the same in all processes of a job."""
    connections: int = _variable("LOCKSTEP_CONNECTIONS", connection_count, 1)
    """How many TCP connections carry a large message of the engine to a process of another host;
    the same in all processes of a job."""
    algorithms: str = _variable("LOCKSTEP_ALGORITHMS", _text, "")
    """Algorithms of the engine between hosts, ``all-reduce=ring:1MiB,all-gather=bruck``, in place
    of its choice by size and number of hosts; the same in all processes of a job."""
    # ruff takes the field for a call that is made once for all instances.
    linalg_link: Link | None = _variable("LOCKSTEP_LINALG_LINK", Link.parse)  # noqa: RUF009
    """What the cost model of `lockstep.linalg` takes collectives to cost, in place of constants;
    the same in all processes of a job."""
    transport: str = _variable("LOCKSTEP_TRANSPORT", _one_of(*TRANSPORTS), "tcp")
    """What carries the engine's messages between hosts; the same in all processes of a job."""
    ucx_library: str | None = _variable("LOCKSTEP_UCX_LIBRARY", _path)
    """Path of the ``libucp.so.0`` that ``--transport ucx`` uses instead of the one it finds."""
    run_dir: str | None = _variable("LOCKSTEP_RUN_DIR", _text)
    """The private directory of this run (logs, error files)."""
    agent: int | None = _variable("LOCKSTEP_AGENT", natural)
    """The descriptor of a process's socket to its agent."""
    attempt: int = _variable("LOCKSTEP_ATTEMPT", natural, 0)
    host_id: str | None = _variable("LOCKSTEP_HOST_ID", _text)
    """Overrides the host's identity: processes that differ in it share no memory."""
    key_file: str | None = _variable("LOCKSTEP_KEY_FILE", _path)
    """Path of the file with the key that authenticates the processes of a job on several hosts to
    each other. Its contents must not be logged."""
    engine: str | None = _variable("LOCKSTEP_ENGINE", _text)
    """Path of the engine's library instead of the installed one (sanitizer builds)."""
    mpi_library: str | None = _variable("LOCKSTEP_MPI_LIBRARY", _text)
    """Path of the ``libmpi_abi.so`` that ``--collectives mpi`` uses instead of the one it finds."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Config:
        """Parses the variables; raises `ConfigError` for a bad value or an unknown name."""
        values: dict[str, Any] = {}
        names = {f.metadata["name"]: f for f in dataclasses.fields(cls)}
        for name in sorted(environ):
            if not name.startswith("LOCKSTEP_"):
                continue
            if name not in names:
                raise ConfigError(
                    f"{name} is not a variable of Lockstep. Known: {', '.join(names)}."
                )
            field = names[name]
            try:
                values[field.name] = field.metadata["parse"](environ[name])
            except ValueError as error:
                raise ConfigError(f"{name}={environ[name]!r}: expected {error}.") from None
        config = cls(**values)
        config._check_place()
        return config

    def check_transport(self) -> None:
        """Raises `ConfigError` for a transport that does not do what the user wants or expects."""
        if self.transport == "ucx" and self.connections > 1:
            raise ConfigError(
                "--connections (LOCKSTEP_CONNECTIONS) is for --transport tcp. UCX uses several "
                "rails by itself: UCX_MAX_RNDV_RAILS says how many."
            )
        if self.transport == "ucx" and self.encryption:
            raise ConfigError(
                "--transport ucx (LOCKSTEP_TRANSPORT) sends data without encryption, because UCX "
                "has none. If you trust the network between the hosts, add --no-encryption "
                "(LOCKSTEP_ENCRYPTION=0); else use --transport tcp, the default, which encrypts."
            )

    def _check_place(self) -> None:
        if self.process_id is not None and self.num_processes is not None:
            if self.process_id >= self.num_processes:
                raise ConfigError(
                    f"LOCKSTEP_PROCESS_ID={self.process_id} but LOCKSTEP_NUM_PROCESSES="
                    f"{self.num_processes}: process ids run from 0 to {self.num_processes - 1}."
                )

    @property
    def attempt_dir(self) -> Path | None:
        """The folder of this attempt; None where no launcher has started this process."""
        if not self.run_dir:
            return None
        # Late import: a process that no launcher has started needs no files of a run.
        from lockstep import _run_files

        return _run_files.attempt_dir(Path(self.run_dir), self.attempt)

    @property
    def own_dir(self) -> Path | None:
        """The folder of this process in this attempt; None where no launcher has started it."""
        return None if self.process_id is None else self.process_dir(self.process_id)

    def process_dir(self, process: int) -> Path | None:
        """The folder of any process in this attempt; None where there is no `attempt_dir`."""
        if not self.run_dir:
            return None
        from lockstep import _run_files  # late as above

        return _run_files.process_dir(Path(self.run_dir), self.attempt, process)

    def to_environ(self) -> dict[str, str]:
        """The variables that make `from_environ` return this configuration."""
        environ = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                environ[field.metadata["name"]] = (
                    str(int(value)) if isinstance(value, bool) else str(value)
                )
        return environ


@functools.cache
def current() -> Config:
    """This process's configuration, read from ``os.environ`` at the first call."""
    return Config.from_environ(os.environ)
