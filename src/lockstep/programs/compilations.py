"""What this process compiles of the programs that run on devices of several processes.

Such a program is described before the compiler is entered, so that the others can see what a
process compiles while it does; a program from JAX's persistent cache is described alike, and an
executable that was saved and loaded by what is known of it. Programs over devices of this process
alone are never looked at.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

from lockstep import _config, _jax_compat
from lockstep.callsites import frames, hlo_metadata
from lockstep.flight_recorder.phrases import function
from lockstep.flight_recorder.program_difference import Difference
from lockstep.programs import difference
from lockstep.programs.difference import Lowered

T = TypeVar("T")
HOOK = "compilations"
LOADED = "executables that are loaded"
LOST = "programs that differ between processes are found by their collectives alone."
MAX_MODULE = 1 << 20
"""Bytes of a packed module that is kept; of a longer one only the digest is."""
_MAX_KEPT = 1 << 26
"""Bytes of all modules that are kept: beyond, a difference is found but not explained."""
_MAX_UNPACKED = 1 << 26
_MAX_MADE = 1 << 10
"""Executables that are kept until the watchdog has looked: beyond, they are not compared."""
_MAX_PACKED = 1 << 22
"""Bytes of a module that are packed: a longer one has large constants."""
_HARMLESS = re.compile(
    "dump|_log|verbos|timeout|thread|compilation_parallelism|force_host_platform_device_count|"
    "cache|load_autotune_results|cuda_data_dir"
)
"""Names of flags that do not change what a program computes. Each process chooses the fastest
kernels by itself also without files of such choices, which may have another path on each host."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program as it was given to the compiler."""

    name: str
    """``jit_step``."""
    at: str
    """The line of the user's program that used it first, ``train.py:34``; "": not known."""
    digest: str
    """The same for the same program, wherever its lines are."""
    devices: tuple[int, ...]
    """The ids of its devices, in the order of its mesh."""
    flags: str
    """``XLA_FLAGS``, without those that change nothing in what is computed."""
    module: bytes = b""
    """What the compiler was given, packed; b"": too long to be kept."""
    executable: str = ""
    """The `identity` of what the compiler has made of it; "": not known."""
    thread: str = ""
    """The name of the thread that launched it first; "": not known."""
    arguments: tuple[str, ...] = ()
    """The arguments of each device, ``x: f32[100,8]``, once it was launched; (): not known."""
    names: tuple[str, ...] = ()
    """The names of its arguments until it is launched, in this process alone."""
    is_loaded: bool = False
    """Whether it came as an executable: ``module`` is its text then, and ``digest`` is of it."""

    @functools.cached_property
    def key(self) -> str:
        """The same on two processes if they run the same program on the same devices."""
        return _digest(repr((self.digest, self.devices, self.flags)).encode())

    @property
    def title(self) -> str:
        return f"{function(self.name)}{f' ({self.at})' if self.at else ''}"

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["names"]
        return {**values, "module": base64.b64encode(self.module).decode()}

    @classmethod
    def from_json(cls, found: Any) -> Program:
        """Raises ValueError, TypeError or KeyError for what `to_json` does not make."""
        name, at, digest, flags = (str(found[k]) for k in ("name", "at", "digest", "flags"))
        devices = tuple(map(int, found["devices"]))
        module = base64.b64decode(found.get("module") or "")
        made, thread = (str(found.get(k) or "") for k in ("executable", "thread"))
        arguments = tuple(map(str, found.get("arguments") or ()))
        known = cls(name, at, digest, devices, flags, module, made, thread, arguments)
        return dataclasses.replace(known, is_loaded=bool(found.get("is_loaded")))

    def without_module(self) -> Program:
        return dataclasses.replace(self, module=b"")

    def lowered(self) -> Lowered:
        """For `difference.explain`."""
        text = ""
        if self.module:
            unpacked = zlib.decompressobj().decompress(self.module, _MAX_UNPACKED)
            text = (
                unpacked.decode(errors="replace")
                if self.is_loaded
                else _jax_compat.text_of_module(unpacked)
            )
        return Lowered(self.title, self.devices, self.flags, text, self.is_loaded)


@dataclasses.dataclass
class _Compilations:
    running: dict[int, tuple[float, Program]] = dataclasses.field(default_factory=dict)
    """What each thread is compiling, and since when (``time.monotonic()``)."""
    by_fingerprint: dict[bytes, list[Program]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )
    kept: int = 0
    fresh: collections.deque[Program] = dataclasses.field(default_factory=collections.deque)
    """The programs that are to be published."""
    made: collections.deque[tuple[Program, Any]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MAX_MADE)
    )
    """What was compiled of them, until it has been looked at."""
    publish: Callable[[str, float], None] = lambda title, since: None
    check: Callable[[Program, Collection[int]], None] = lambda program, processes: None


_known = _Compilations()


def note(publish: Callable[[str, float], None]) -> None:
    """From now on describes the programs over devices of several processes.

    ``publish`` is called with the title of the one that is being compiled and since when, and with
    "" when there is none any more. It replaces that of an earlier call.
    """
    _known.publish = publish
    if not _jax_compat.is_in(HOOK):
        _jax_compat.install(HOOK, LOST, lambda: _jax_compat.around_compilations(_note))
        _jax_compat.install(LOADED, LOST, lambda: _jax_compat.note_loaded(_note_loaded))


def refuse(check: Callable[[Program, Collection[int]], None]) -> None:
    """Has each such program shown to ``check`` first, with its processes: it may raise."""
    _known.check = check


def _note(module: Any, devices: Sequence[Any], options: Any, run: Callable[[], Any]) -> Any:
    if len({device.process_index for device in devices}) < 2:
        return run()
    with _with_options(module, options):
        return _compiled(module, devices, run)


def _with_options(module: Any, options: Any) -> contextlib.AbstractContextManager[None]:
    """What a program asks of the compiler is in no module and in no text of an executable."""
    if _config.current().check_programs != _config.OFF:
        try:
            if changed := _telling(_jax_compat.changed_options(options)):
                text = re.sub(r"[^\x20-\x7e]|[\"\\{}]", "?", " ".join(changed))
                return _jax_compat.marked(module, hlo_metadata.OPTIONS, text)
        except Exception as error:  # the program comes first
            _jax_compat.report(HOOK, LOST, error)
    return contextlib.nullcontext()


def _compiled(module: Any, devices: Sequence[Any], run: Callable[[], Any]) -> Any:
    thread = threading.get_ident()
    try:
        program = _described(module, devices)
    except Exception as error:  # the program comes first
        _jax_compat.report(HOOK, LOST, error)
        return run()
    _known.check(program, {device.process_index for device in devices})
    outer = _known.running.get(thread)
    _known.running[thread] = (time.monotonic(), program)
    _publish()
    try:
        made = run()
    finally:
        if outer is None:
            _known.running.pop(thread, None)
        else:
            _known.running[thread] = outer
        _publish()
    if isinstance(fingerprint := getattr(made, "fingerprint", None), bytes):
        _known.by_fingerprint[fingerprint].append(program)
        _known.made.append((program, made))
    _known.fresh.append(program)
    return made


def _note_loaded(executable: Any, devices: Sequence[Any]) -> None:
    try:
        program = _described_executable(executable, devices)
    except Exception as error:  # the program comes first
        _jax_compat.report(LOADED, LOST, error)
        return
    if program is not None:
        _known.check(program, {device.process_index for device in devices})
        _known.by_fingerprint[executable.fingerprint].append(program)
        _known.fresh.append(program)


def _described_executable(executable: Any, devices: Sequence[Any]) -> Program | None:
    """An executable that was not compiled here, but saved and loaded as it is; None: another."""
    ids = tuple(device.id for device in devices)
    fingerprint = getattr(executable, "fingerprint", None)
    if not isinstance(fingerprint, bytes) or len({d.process_index for d in devices}) < 2:
        return None
    if any(known.devices == ids for known in _known.by_fingerprint.get(fingerprint, ())):
        return None
    text = _jax_compat.text_of_executable(executable, origins=True)
    line = frames.innermost()
    return Program(
        hlo_metadata.name(text),
        line.short if line else "",
        identity(executable, text, ids),
        ids,
        flags(),
        _packed(text.encode()),
        is_loaded=True,
    )


def identity(executable: Any, text: str, devices: tuple[int, ...]) -> str:
    """The same on all processes that run the same executable on the same devices.

    The fingerprint covers the lines that a program was traced from, so it is used only where the
    ``text`` of the executable has not all values, or is not known ("").
    """
    made, is_exact = hlo_metadata.digest(text)
    known = made if text and is_exact else executable.fingerprint
    return _digest(repr((known, devices, flags())).encode())


def _publish() -> None:
    try:
        since, program = current() or (0.0, None)
        _known.publish(program.title if program else "", since)
    except Exception as error:  # the program comes first
        _jax_compat.report(HOOK, LOST, error)


def _described(module: Any, devices: Sequence[Any]) -> Program:
    name, bare, whole = _jax_compat.bytes_of_module(module)
    line = frames.innermost()
    ids = tuple(device.id for device in devices)
    return Program(
        name,
        line.short if line else "",
        _digest(bare),
        ids,
        flags(),
        _packed(whole),
        names=_jax_compat.names_of_arguments(module),
    )


def _packed(whole: bytes) -> bytes:
    """What is kept of a program; b"": it is too long."""
    packed = zlib.compress(whole, 1) if len(whole) <= _MAX_PACKED else b""
    if len(packed) > MAX_MODULE or _known.kept + len(packed) > _MAX_KEPT:
        return b""
    _known.kept += len(packed)
    return packed


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


@functools.cache
def flags() -> str:
    """``XLA_FLAGS``, without those that change nothing in what is computed: XLA reads them once."""
    return " ".join(_telling(os.environ.get("XLA_FLAGS", "").split()))


def _telling(flags: Sequence[str]) -> list[str]:
    """The flags that change what a program computes, sorted."""
    return sorted(flag for flag in flags if not _HARMLESS.search(flag.partition("=")[0]))


def current() -> tuple[float, Program] | None:
    """The program that has been compiled for longest, and since when; None: there is none."""
    return min(list(_known.running.values()), key=lambda one: one[0], default=None)


def of_executable(fingerprint: bytes) -> list[Program]:
    """The programs that became this executable, the latest to be compiled last: they differ in
    their devices, their lines, or in what the compiler makes no difference of."""
    return list(_known.by_fingerprint.get(fingerprint, ()))


def launched_in(frame: FrameType | None) -> Program | None:
    """The program that the innermost frame of a thread launches by Python code, if that is one over
    devices of several processes."""
    executable = _jax_compat.launched_by(frame) if frame else None
    fingerprint = getattr(executable, "fingerprint", None)
    known = of_executable(fingerprint) if isinstance(fingerprint, bytes) else []
    return known[-1].without_module() if known else None


def fresh() -> list[Program]:
    """The programs compiled since the last call. To be called on one thread only."""
    return _taken(_known.fresh)


def made() -> list[tuple[Program, Any]]:
    """The programs that were compiled here since the last call, and their executables."""
    return _taken(_known.made)


def _taken(some: collections.deque[T]) -> list[T]:
    found = []
    while some:
        found.append(some.popleft())
    return found


def explain(found: Mapping[int, Program]) -> Difference | None:
    """How the programs differ that processes run together; None: they are the same."""
    groups = _groups(found)
    if len(groups) < 2:
        return None
    first, second = sorted(groups, key=lambda some: (-len(some), some))[:2]
    pairs = [(found[a], found[b]) for a in second for b in first]
    one, other = next((p for p in pairs if p[0].is_loaded == p[1].is_loaded), pairs[0])
    return difference.explain(one.lowered(), other.lowered(), (tuple(second), tuple(first)))


def _groups(found: Mapping[int, Program]) -> list[list[int]]:
    """The processes that run one program each.

    One that was compiled, and an executable of it that was loaded, are known to be one only once
    both were launched. Before, those that came in one way are compared, if they differ.
    """
    whole = _of_one_program(found)
    for loaded in (False, True):
        some = _of_one_program({p: one for p, one in found.items() if one.is_loaded is loaded})
        if 1 < len(some) < len(whole):
            return some
    return whole


def _of_one_program(found: Mapping[int, Program]) -> list[list[int]]:
    """The processes with one module, or of which the compiler has made one executable."""
    groups: list[tuple[set[str], list[int]]] = []
    for process, one in sorted(found.items()):
        names, members = {one.key, one.executable} - {""}, [process]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names, members = names | group[0], members + group[1]
        groups.append((names, members))
    return [sorted(members) for _, members in groups]
