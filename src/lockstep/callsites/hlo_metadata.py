"""Finds the lines of the user's program that the collectives of compiled programs come from.

The engine records two numbers with each collective (native/xla_probe/origin.h): the run id, which
identifies an execution of a program, and the channel of the collective in that program. JAX counts
the run ids of a program upwards from the sum of two hashes: one of the program's fingerprint, and
one of its devices (`highwayhash`). The devices of a program are not known here, so the hashes of
all meshes in use are tried. For other lists of devices, and for a jaxlib with another hash, the
second hash is inferred: it is the same for all programs over the same devices, so the first run id
of one known program gives it for the others. Until then every program that has such a collective is
a candidate.

Shapes, names and stack frames come from the text of the compiled program.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.callsites.farmhash import fingerprint64
from lockstep.callsites.highwayhash import hash_of_devices
from lockstep.callsites.hlo_text import OP_NAME, SHAPE, Frames, SourceLine, arguments, shape

_MODULE = re.compile(r"HloModule (\S+?),")
_COLLECTIVE = re.compile(
    rf"= {SHAPE} (?P<op>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute)(?:-start)?\(.*?channel_id=(?P<channel>\d+)(?P<rest>.*)"
)
_NATIVE_CALL = re.compile(r'custom_call_target="(?!lapack_|TopK"|xla_|lockstep_)')
"""A call of a function that neither XLA nor JAX nor Lockstep has registered."""
_PLACE = re.compile(r"source_file=|stack_frame_id=")
_NAMED = re.compile(r"^\s*(?:ROOT )?(%\S+) = .*", re.MULTILINE)
_OPERANDS = re.compile(r" [\w-]+\(([^()]*%[^()]*)\)")
_MAX_STEPS = 8
# The parts of an instruction that describe its origin and the machine.
_ORIGINS = re.compile(
    r', metadata=\{[^{}"]*(?:"[^"]*"[^{}"]*)*\}'
    r"|, (?:backend_config|frontend_attributes)="
    r"\{[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*\}"
)
_BACKEND_CONFIG = ", backend_config="
_ORIGIN_NAMES = (", metadata=", _BACKEND_CONFIG, ", frontend_attributes=")
_CHOSEN_OR_NUMBERED = re.compile(
    r'custom_call_target="(?:__|[^"]*(?:callback|CustomSPMDPartitioning))'
)
"""Calls that the compiler configures on each host by itself, and those with a number of a Python
function: their configuration is no part of the program."""
_ADDRESS = re.compile(r"(?<![\w.+-])(?:0x[0-9a-fA-F]{8,}|\d{10,})(?![\w.])")
OPTIONS = "lockstep.compiler_options"
"""The attribute of a module that says what its program asked of the compiler."""
_OPTIONS = re.compile(rf'\b{re.escape(OPTIONS)} ?= ?"([^"]*)"')
_LEFT_OUT = "constant({...})"
"""The values of a large constant do not stand in the text."""
_NUMBERS = 1 << 32
EXECUTIONS = 1 << 17
"""More executions of one program than there are between two scans, and few enough that another
program's run id hardly ever lies in the range."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program."""

    op: str
    channel: int
    shape: str
    op_name: str
    file: str
    """The innermost line of the user's program, else the line that called JAX."""
    line: int
    function: str = ""
    """The Python function of that line; "": not known."""
    through_file: str = ""
    """The line of a library that calls JAX, when ``file`` is the user's line above it."""
    through_line: int = 0


Digests = dict[str, list[str]]
"""Hashes of the programs that a run id may belong to: of the ``whole`` text, of the
``collectives`` alone, and of those whole texts that have all values (``exact``)."""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    fingerprint: bytes
    module: str
    collectives: tuple[Collective, ...]
    whole: str = ""
    """A digest of the text without source lines."""
    arguments: tuple[str, ...] = ()
    """The arguments of each device in their order, ``x: f32[100,8]``."""
    is_exact: bool = False
    """Whether the text has the values of all constants."""

    @property
    def skeleton(self) -> str:
        """A digest of the collectives alone, for processes whose compilers differ."""
        return _digest([self.module, *(f"{c.op} {c.channel} {c.shape}" for c in self.collectives)])

    @property
    def key(self) -> int:
        return fingerprint64(self.fingerprint) % _NUMBERS

    def first_number(self, devices: Sequence[int]) -> int:
        """The run id of the first execution on these devices."""
        return (self.key + hash_of_devices(tuple(devices))) % _NUMBERS

    def has(self, op: str, channel: int) -> bool:
        return any(c.op == op and c.channel == channel for c in self.collectives)


def parse(fingerprint: bytes, text: str) -> CompiledProgram:
    """Reads the text of a compiled program. Pure."""
    frames = Frames(text)
    collectives = []

    @functools.cache
    def named() -> dict[str, str]:
        return {found[1]: found[0] for found in _NAMED.finditer(text)}

    for line in text.splitlines():
        if found := _COLLECTIVE.search(line):
            origin = _with_place(line, named)
            op_name = OP_NAME.search(origin)
            collectives.append(
                Collective(
                    found["op"],
                    int(found["channel"]),
                    shape(found["shape"]),
                    op_name[1] if op_name else "",
                    *frames.source_line(origin),
                )
            )
    whole, exact = digest(text)
    return CompiledProgram(
        fingerprint, name(text), tuple(collectives), whole, arguments(text), exact
    )


def places(text: str) -> dict[str, SourceLine]:
    """The source lines of the instructions of a compiled program that have one, by name."""
    frames = Frames(text)
    found = {m[1]: frames.source_line(m[0]) for m in _NAMED.finditer(text)}
    return {name: at for name, at in found.items() if at.file}


def name(text: str) -> str:
    """The name of a compiled program."""
    module = _MODULE.search(text)
    return module[1] if module else "?"


def compiler_options(text: str) -> str:
    """What a module or an executable was compiled with, by its text; "": as usual."""
    given = _OPTIONS.search(text) if OPTIONS in text else None  # which is found much sooner
    return given[1] if given else ""


def digest(text: str) -> tuple[str, bool]:
    """A digest of a compiled program without its origins, and whether it covers all constants."""
    return _digest([name(text), compiler_options(text), computations(text)]), _LEFT_OUT not in text


def _with_place(line: str, named: Callable[[], Mapping[str, str]]) -> str:
    """The instruction; if it has no source line (a resharding), the one that makes its operand.

    Only instructions with one operand are followed, since the origin of others is ambiguous.
    """
    origin = line
    for _ in range(_MAX_STEPS):
        if _PLACE.search(origin):
            return origin
        operands = found[1].split(",") if (found := _OPERANDS.search(origin)) else []
        if len(operands) != 1:
            break
        origin = named().get(operands[0].split()[-1], "")
    return line


def computations(text: str) -> str:
    """The computations of a compiled program, without where they come from.

    To look for a word in the whole text takes a tenth of the time of `sub`, and of that for lines.
    """
    first = text.find("\n%")
    entry = text.find("\nENTRY", 0, first) if first >= 0 else text.find("\nENTRY")
    bare = text[max(first if entry < 0 else entry, 0) :]
    if " custom-call(" in bare:
        return "\n".join(map(_without_origins, bare.split("\n")))
    return _ORIGINS.sub("", bare) if any(name in bare for name in _ORIGIN_NAMES) else bare


def _without_origins(line: str) -> str:
    is_call = " custom-call(" in line and not _CHOSEN_OR_NUMBERED.search(line)
    return _ORIGINS.sub(_without_addresses if is_call else "", line) if "={" in line else line


def _without_addresses(found: re.Match[str]) -> str:
    """A call's configuration says what it computes (``uplo``), and may have an address in it."""
    return _ADDRESS.sub("?", found[0]) if found[0].startswith(_BACKEND_CONFIG) else ""


def _digest(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def digests(programs: Sequence[CompiledProgram]) -> Digests:
    return {
        "whole": [program.whole for program in programs],
        "collectives": [program.skeleton for program in programs],
        "exact": [program.whole for program in programs if program.is_exact],
    }


Calls = Mapping[int, set[tuple[str, int]]]
"""Run id -> the collectives of that execution, as (operation, channel)."""


def near(one: int, other: int) -> bool:
    """Whether two run ids may be of one program, by their distance."""
    return min((one - other) % _NUMBERS, (other - one) % _NUMBERS) < EXECUTIONS


class Matcher:
    """Finds the compiled program that a run id belongs to.

    If two programs have the same difference between run id and hash of the fingerprint, then this
    is the hash of their devices: by chance it happens once in 2^32.

    ``device_lists`` returns the lists of device ids, in order, that programs may run on.
    """

    def __init__(self, device_lists: Callable[[], Iterable[tuple[int, ...]]] = tuple) -> None:
        self._device_lists = device_lists
        self._hashed: set[tuple[int, ...]] = set()
        # The second hash is 0 for a program that runs on devices of this process alone.
        self._offsets: set[int] = {0}
        self._latest: list[int] = []
        """The latest run id of each known program."""

    def is_known(self, execution: int) -> bool:
        """Whether a run id is of a known program. To be called for all run ids, in order."""
        for index, latest in enumerate(self._latest):
            if near(latest, execution):
                if (execution - latest) % _NUMBERS < EXECUTIONS:
                    self._latest[index] = execution
                return True
        return False

    def match(
        self, calls: Calls, programs: Sequence[CompiledProgram]
    ) -> dict[int, list[CompiledProgram]]:
        """The programs that each run id may belong to.

        A run id with exactly one program makes the program known; it should be that of the
        program's first execution.
        """
        found = {
            execution: [p for p in programs if all(p.has(*call) for call in made)]
            for execution, made in calls.items()
        }
        offsets = Counter(
            self._between(execution, p) for execution, ps in found.items() for p in ps
        )
        self._offsets |= {offset for offset, count in offsets.items() if count > 1}
        if not all(self._offsets & self._distances(*item) for item in found.items()):
            self._learn_lists()
        for execution, candidates in found.items():
            sure = [p for p in candidates if self._between(execution, p) in self._offsets]
            found[execution] = sure or candidates
            if sure or len(candidates) == 1:
                self._latest.append(execution)
        return found

    def _distances(self, execution: int, programs: Sequence[CompiledProgram]) -> set[int]:
        return {self._between(execution, program) for program in programs}

    def _learn_lists(self) -> None:
        fresh = set(self._device_lists()) - self._hashed
        self._hashed |= fresh
        self._offsets |= {hash_of_devices(ids) % _NUMBERS for ids in fresh}

    @staticmethod
    def _between(execution: int, program: CompiledProgram) -> int:
        return (execution - program.key) % _NUMBERS


class Programs:
    """The compiled programs of this process that have collectives, each read once."""

    def __init__(self, live: Callable[[], Iterable[Any]]) -> None:
        self._live = live
        self._held: dict[bytes, Any] = {}
        self._read: dict[bytes, CompiledProgram] = {}
        self.call_native_code = False
        """Whether one of those that were read calls native code of others than XLA, JAX and
        Lockstep."""

    def hold(self, executable: Any) -> None:
        """Keeps a new executable until it is read, because ``jax.jit(f)(x)`` drops it at once."""
        self._held.update(self._unread([executable]))

    def drop(self) -> None:
        self._held.clear()

    def read_held(self) -> None:
        while self._held:  # other threads add to it
            self._add(*self._held.popitem())

    def all(self) -> list[CompiledProgram]:
        self.read_held()
        for fingerprint, executable in self._unread(self._live()).items():
            self._add(fingerprint, executable)
        return [program for program in self._read.values() if program.collectives]

    def has_collectives(self, fingerprint: bytes) -> bool | None:
        """Whether a program has them; None: it was not read."""
        program = self._read.get(fingerprint)
        return bool(program.collectives) if program else None

    def _unread(self, executables: Iterable[Any]) -> dict[bytes, Any]:
        named = ((executable.fingerprint, executable) for executable in executables)
        return {f: e for f, e in named if isinstance(f, bytes) and f not in self._read}

    def _add(self, fingerprint: bytes, executable: Any) -> None:
        text = executable.hlo_modules()[0].to_string()
        self.call_native_code |= _NATIVE_CALL.search(text) is not None
        nothing = CompiledProgram(fingerprint, "", (), "")
        # Most programs are small and have no collectives, so their texts are not parsed.
        self._read[fingerprint] = parse(fingerprint, text) if "channel_id=" in text else nothing
