"""Where the collectives of compiled programs come from: their lines in the user's program.

The engine records two numbers with each collective (native/origin.h): which execution of which
program, and which collective of that program. JAX numbers a program's executions upwards from
a hash: that of the program's fingerprint plus one of its devices (`highwayhash`). JAX does not say
which devices a program is for, so those of all meshes in use are tried. For others, and for a
jaxlib that hashes otherwise, the second hash is found out: it is the same for all programs over
the same devices, so once one program's first number is known, the difference to its fingerprint's
hash is known for all. Until then every program that has such a collective is a candidate.

The compiled program's text has the rest: shapes, names, stack frames.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.callsites.farmhash import fingerprint64
from lockstep.callsites.highwayhash import hash_of_devices
from lockstep.callsites.hlo_text import Frames, SourceLine, arguments, place, shape

_MODULE = re.compile(r"HloModule (\S+?),")
_COLLECTIVE = re.compile(
    r"= (?P<shape>\([^=]*?\)|\S+) (?P<op>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute)(?:-start)?\(.*?channel_id=(?P<channel>\d+)(?P<rest>.*)"
)
_METADATA = {
    "op_name": re.compile(r'op_name="([^"]*)"'),
    "file": re.compile(r'source_file="([^"]*)"'),
    "line": re.compile(r"source_line=(\d+)"),
    "frame": re.compile(r"stack_frame_id=(\d+)"),
}
_PLACE = re.compile(r"source_file=|stack_frame_id=")
_NAMED = re.compile(r"^\s*(?:ROOT )?(%\S+) = .*", re.MULTILINE)
_OPERANDS = re.compile(r" [\w-]+\(([^()]*%[^()]*)\)")
_MAX_STEPS = 8
# What a compiled program says of its origin, of the machine, and of values.
_ORIGINS = re.compile(
    r', metadata=\{(?:[^{}"]|"[^"]*")*\}'
    r"|, (?:backend_config|frontend_attributes)=\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
    r"|(?<=constant\()(?:[^()]|\([^()]*\))*"
)
_NUMBERS = 1 << 32
EXECUTIONS = 1 << 17
"""More executions of one program than there are between two looks; few enough that another
program's number hardly ever lies among them."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program."""

    op: str
    channel: int
    shape: str
    op_name: str
    file: str
    """The nearest line of the user's program, else of what called JAX."""
    line: int
    function: str = ""
    """The Python function of that line, where the program says it."""
    through_file: str = ""
    """The line of a library that calls JAX, where ``file`` is the user's line above it."""
    through_line: int = 0


Digests = dict[str, list[str]]
"""Of the programs that a number may belong to: hashes of the ``whole`` text, of its
``collectives``."""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    fingerprint: bytes
    module: str
    collectives: tuple[Collective, ...]
    whole: str = ""
    """A digest of the text, less where it comes from and the values of its constants."""
    arguments: tuple[str, ...] = ()
    """``x: f32[100,8]``, what each device is given, in their order."""

    @property
    def skeleton(self) -> str:
        """A digest of the collectives alone, for processes whose compilers differ."""
        return _digest([self.module, *(f"{c.op} {c.channel} {c.shape}" for c in self.collectives)])

    @property
    def key(self) -> int:
        return fingerprint64(self.fingerprint) % _NUMBERS

    def has(self, op: str, channel: int) -> bool:
        return any(c.op == op and c.channel == channel for c in self.collectives)


def parse(fingerprint: bytes, text: str) -> CompiledProgram:
    """Reads the text of a compiled program. Pure."""
    frames = Frames(text)
    module = _MODULE.search(text)
    collectives = []

    @functools.cache
    def named() -> dict[str, str]:
        return {found[1]: found[0] for found in _NAMED.finditer(text)}

    for line in text.splitlines():
        if found := _COLLECTIVE.search(line):
            origin = _with_place(line, named)
            said = {name: m[1] for name, at in _METADATA.items() if (m := at.search(origin))}
            at = place(frames.chain(int(said.get("frame", 0))))
            if not at.file and "file" in said:
                at = SourceLine(said["file"], int(said.get("line", 0)))
            collectives.append(
                Collective(
                    found["op"],
                    int(found["channel"]),
                    shape(found["shape"]),
                    said.get("op_name", ""),
                    *at,
                )
            )
    name = module[1] if module else "?"
    whole = _digest([name, *_instructions(text)])
    return CompiledProgram(fingerprint, name, tuple(collectives), whole, arguments(text))


def _with_place(line: str, named: Callable[[], Mapping[str, str]]) -> str:
    """The instruction; where it has no place, as of a resharding, the one whose result it takes.

    That is certain only along instructions that take one thing.
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


def _instructions(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY", "  ", "}")):
            yield _ORIGINS.sub("", line)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def digests(programs: Sequence[CompiledProgram]) -> Digests:
    return {
        "whole": [program.whole for program in programs],
        "collectives": [program.skeleton for program in programs],
    }


Calls = Mapping[int, set[tuple[str, int]]]
"""By number of an execution: the collectives that it made, (operation, channel)."""


def near(one: int, other: int) -> bool:
    """Whether two numbers are those of executions of one program not far apart."""
    return min((one - other) % _NUMBERS, (other - one) % _NUMBERS) < EXECUTIONS


class Matcher:
    """Finds which compiled program the number of an execution belongs to.

    Two programs whose numbers lie equally far from their fingerprints' hashes give the distance
    away: by chance that happens once in four thousand million.

    ``device_lists`` gives ids of devices that programs may run on, in order.
    """

    def __init__(self, device_lists: Callable[[], Iterable[tuple[int, ...]]] = tuple) -> None:
        self._device_lists = device_lists
        self._hashed: set[tuple[int, ...]] = set()
        # Nothing is added for a program that runs on devices of this process alone.
        self._offsets: set[int] = {0}
        self._latest: list[int] = []
        """Of each program that is known: the latest execution that was seen."""

    def is_known(self, execution: int) -> bool:
        """Whether the program is known whose execution this is; call it for all, in order."""
        for index, latest in enumerate(self._latest):
            if near(latest, execution):
                if (execution - latest) % _NUMBERS < EXECUTIONS:
                    self._latest[index] = execution
                return True
        return False

    def match(
        self, calls: Calls, programs: Sequence[CompiledProgram]
    ) -> dict[int, list[CompiledProgram]]:
        """The programs that each number may belong to.

        A number that has one program is known from then on; it should be that of the program's
        first execution.
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

    def hold(self, executable: Any) -> None:
        """Keeps what was just compiled until it is read: ``jax.jit(f)(x)`` drops it at once."""
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

    def _unread(self, executables: Iterable[Any]) -> dict[bytes, Any]:
        named = ((executable.fingerprint, executable) for executable in executables)
        return {f: e for f, e in named if isinstance(f, bytes) and f not in self._read}

    def _add(self, fingerprint: bytes, executable: Any) -> None:
        text = executable.hlo_modules()[0].to_string()
        nothing = CompiledProgram(fingerprint, "", (), "")
        # Most programs are small ones of one device, and nobody asks for them.
        self._read[fingerprint] = parse(fingerprint, text) if "channel_id=" in text else nothing
