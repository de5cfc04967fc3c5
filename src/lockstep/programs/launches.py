"""The launch record: which programs this process has launched, in what order.

It is for collectives that Lockstep does not run itself (gloo, MPI): the engine and NCCL's profiler
plug-in record each collective, which says more. The record has the form of the engine's
(`lockstep.flight_recorder.format`), with a launch in the place of a collective, so whatever reads
that reads this. A program counts if it runs on devices of several processes and has collectives.

JAX tells of a launch after it has dispatched the program. So an entry says that the program was
launched; whether it has ended is looked up when nothing was launched for a while (`Record.look`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import _jax_compat
from lockstep.callsites import hlo_text
from lockstep.flight_recorder import format, run_records
from lockstep.flight_recorder.format import Op, ProcessRecord, Ring, State
from lockstep.job.topology import Peer
from lockstep.programs import compilations
from lockstep.programs.compilations import Program
from lockstep.programs.crossing import crosses_processes
from lockstep.programs.jitted import NOT_STATIC, Functions, Launched, Static

_HEAD = struct.Struct("<QqqQQ")
_TAIL = struct.Struct("<iii8iI")
_ENTRY = struct.Struct(f"<Q{_HEAD.size}sII3q{_TAIL.size}s")
"""An entry of the record: number, head, sequence, kind and state, three times, tail."""
assert _ENTRY.size == format.ENTRY_BYTES
_ENTRIES_AT = format.RINGS_AT + format.RING_HEADER_BYTES
_RUN_IDS = 1 << 31
_COUNT = struct.Struct("<Q")
# Each launch uses these: a name of this module is found sooner than a name in another one.
_ENTRIES, _ENTRY_BYTES, _WRITTEN_AT = format.ENTRIES, format.ENTRY_BYTES, format.RINGS_AT
_WHOLE_WORDS = _WRITTEN_AT + _COUNT.size
_WRITTEN_WORD = _WRITTEN_AT // _COUNT.size
assert _WRITTEN_AT % _COUNT.size == 0
_pack = _ENTRY.pack_into
_now, _thread = time.monotonic_ns, threading.get_ident
_LAUNCHED = int(Op.PROGRAM) | State.DONE << 24
"""Operation, dtype, reduction and state, a byte each."""
_IN_FLIGHT = int(Op.PROGRAM) | State.ENTERED << 24
_STATE_AT = 8 + _HEAD.size + 7
_ENTERED_AT = _STATE_AT + 1
_DONE_AT = _ENTERED_AT + 16


@dataclasses.dataclass
class _Begun:
    """A launch by Python code."""

    launched: Launched
    is_written: bool = False
    """Whether it is written as launched already: another launch has come before its end."""


class Record:
    """Writes the record, and reads it with what is known at the moment."""

    def __init__(self, descriptor: int, empty: ProcessRecord, owner: Mapping[int, int]) -> None:
        """``descriptor``: an empty file; ``empty``: the process, with a ring for its first device;
        ``owner``: the process of each device."""
        self._owner = owner
        os.pwrite(descriptor, format.encode(empty), 0)
        self._map = mmap.mmap(descriptor, 0)
        self._words = memoryview(self._map)[:_WHOLE_WORDS].cast("Q")
        self._empty = empty
        self._own = empty.rings[0].device
        # A signal handler of the program may launch one while this thread records one.
        self._lock: Any = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._main = threading.main_thread().ident
        self._written = 0
        self._guess: Launched | None = None
        """A launch that is believed to be in JAX now, which is recorded already."""
        self._inside: _Begun | None = None
        """What is between `begin` and `end`, if nothing was launched since: it is that guess."""
        self._has_failed = False
        self._is_marked = False
        """Whether the last launch is said to be in flight."""
        self._sequences: dict[int, int] = {}
        self._launched: dict[tuple[str, str], Launched | None] = {}
        """None: a program without collectives."""
        self._functions = Functions()
        self._by_jitted = self._functions.by_jitted
        """Each launch asks it: a call less."""
        self._clique_words = 0
        self.new_sites: Callable[[Sequence[run_records.Site]], None] = lambda _: None
        """Is given the line of each program that is launched for the first time."""
        self.new_program: Callable[[Program, str], None] = lambda _, __: None
        """Is given that program, and its text as it was compiled."""

    # What JAX calls

    def begin(self, executable: Any) -> _Begun | None:
        """Python code is about to execute a program; returns what `end` needs."""
        launched = self._of_executable(executable)
        if launched is None:
            return None
        begun = _Begun(launched)
        if launched.crosses or _thread() == self._main:
            with self._lock:
                self._guess_that(launched, is_sure=True)
                self._inside = begun
        return begun

    def end(self, begun: _Begun | None, error: BaseException | None) -> None:
        """The program has been dispatched, or has raised ``error``."""
        if begun is None:
            return
        with self._lock:
            is_last = self._inside is begun
            if is_last:
                self._inside = None
            if error is None:
                if not begun.is_written:
                    self._add(begun.launched)
            elif _jax_compat.is_of_collective(str(error)):
                self.failed()
            elif is_last:
                self._withdraw()

    def learn(
        self, function: Any, executable: Any, args: Any, kwargs: Any, static: Static = NOT_STATIC
    ) -> None:
        if function is not None:  # else JAX's own call of a function under a derivative, say
            launched = self._of_executable(executable)
            self._functions.learn(function, launched, args, kwargs, static)

    def fast(self, jitted: Any, args: Any, kwargs: Any, results: Any) -> None:
        known = self._by_jitted.get(id(jitted))
        if known is not None and (launched := known.only) is not None:
            self._add(launched)
            return
        launched, is_sure = self._functions.launched_by(jitted, args, kwargs, results)
        if launched is not None:
            self._add(launched, is_sure)

    # Writing

    def _of_executable(self, executable: Any) -> Launched | None:
        fingerprint = getattr(executable, "fingerprint", None)
        if not isinstance(fingerprint, bytes):
            return None
        program = self._on_devices_of(executable, compilations.of_executable(fingerprint))
        if program is None:
            return None
        key = program.key, program.at
        if key not in self._launched:
            self._launched[key] = None
            text = _jax_compat.text_of_executable(executable)
            if _jax_compat.has_collectives(text):
                made = compilations.identity(executable, text, program.devices)
                program = dataclasses.replace(
                    program,
                    executable=made,
                    thread=threading.current_thread().name,
                    arguments=hlo_text.arguments(text, program.names),
                    names=(),
                )
                processes = [self._owner[device] for device in program.devices]
                crosses = crosses_processes(text, processes)
                self._launched[key] = launched = self._new(program, crosses)
                self.new_sites(sites_of({launched.run_id: program}))
                self.new_program(program, text)
        return self._launched[key]

    def _on_devices_of(self, executable: Any, programs: Sequence[Program]) -> Program | None:
        """The latest program that became this executable: one may be on several meshes.

        A loop whose carry is an array of one device at first, and of all later, has two programs
        that become one executable. Launches of the two count as equal (`Program.executable`).
        """
        if len({program.devices for program in programs}) < 2:
            return programs[-1] if programs else None
        local = [device.id for device in executable.local_devices()]
        process = self._empty.process
        fitting = [
            p for p in programs if [d for d in p.devices if self._owner[d] == process] == local
        ]
        return fitting[-1] if len({program.devices for program in fitting}) == 1 else None

    def _new(self, program: Program, crosses: bool) -> Launched:
        run_id = int.from_bytes(bytes.fromhex(program.key)[:4], "little") % _RUN_IDS or 1
        clique = _hash(sorted(program.devices))
        members = _representatives(program.devices, self._owner)
        if clique not in self._sequences:
            self._sequences[clique] = 0
            self._write_clique(clique, members)
        known, unknown = (_HEAD.pack(clique, *ids, 0, 0) for ids in ((run_id, 1), (0, 0)))
        tail = _TAIL.pack(members.index(self._own), -1, 0, *[0] * format.LISTED_TARGETS, 0)
        devices = frozenset(program.devices)
        return Launched(program, run_id, clique, members, devices, known, unknown, tail, crosses)

    def _write_clique(self, clique: int, members: Sequence[int]) -> None:
        words = struct.pack(
            f"<IIi{len(members)}i", clique & 0xFFFFFFFF, clique >> 32, len(members), *members
        )
        at = format.HEADER_BYTES + 4 * self._clique_words
        if at + len(words) <= format.RINGS_AT:
            self._map[at : at + len(words)] = words
            self._clique_words += len(words) // 4
            struct.pack_into("<I", self._map, format.STATE_AT + 4, self._clique_words)

    def _add(self, launched: Launched, is_sure: bool = True, kind: int = _LAUNCHED) -> None:
        # Threads record their launches in the order that the program gives them. It need not order
        # what waits for no other process.
        if not launched.crosses and kind == _LAUNCHED and _thread() != self._main:
            return
        head = launched.known if is_sure else launched.unknown
        try:
            self._acquire()  # it takes half of the time of `with`
            if self._guess is not None:
                self._make_room()
            elif self._is_marked:
                self._mark(State.DONE)
            # Python runs a signal handler at a call only: these numbers are taken without one.
            self._written = number = (before := self._written) + 1
            sequences, clique = self._sequences, launched.clique
            sequences[clique] = 1 + (sequence := sequences[clique])
            now = _now()
            at = _ENTRIES_AT + before % _ENTRIES * _ENTRY_BYTES
            done = now if kind == _LAUNCHED else 0
            sequence &= 0xFFFFFFFF  # a job of some days has more launches
            _pack(self._map, at, number, head, sequence, kind, now, now, done, launched.tail)
            self._words[_WRITTEN_WORD] = self._written  # a signal handler may have added one
        except BaseException:  # as Ctrl-C, which may come before the lock was taken
            if self._lock._is_owned():
                self._release()
            raise
        self._release()

    def _make_room(self) -> None:
        """A callback of the launch that has begun may have woken this thread: that came first."""
        if self._inside is not None:
            self._mark(State.DONE)
            self._inside.is_written, self._inside, self._guess = True, None, None
        else:
            self._take_back()

    def _take_back(self) -> None:
        """What was believed to be launched has been launched, or something else has."""
        assert self._guess is not None
        self._sequences[self._guess.clique] -= 1
        self._written -= 1
        self._guess = None

    # Reading

    def look(self, in_call: Sequence[Any], in_flight: bool, written: int | None = None) -> None:
        """Writes down what the last launch is doing, when nothing was launched for a while.

        ``in_call``: the functions of which the main thread may be in one: a call of a jitted
        function is recorded only when it returns. ``in_flight``: whether a device still has
        results to make. ``written``: how many launches there were when this was looked up; does
        nothing if there are more by now.
        """
        launched, is_sure = self._functions.latest_of_some(in_call)
        with self._lock:
            if self._has_failed or self._inside or written not in (None, self._written):
                return
            if self._guess is not None and self._guess is not launched:
                self._withdraw()
            if launched is not None and self._guess is None:
                self._guess_that(launched, is_sure)
            elif self._written and self._guess is None:
                self._mark(State.ENTERED if in_flight else State.DONE)

    def _guess_that(self, launched: Launched, is_sure: bool) -> None:
        with self._lock:
            self._add(launched, is_sure, _IN_FLIGHT)
            self._guess = launched

    def _withdraw(self) -> None:
        """The call was no launch, or has raised."""
        self._take_back()
        _COUNT.pack_into(self._map, format.RINGS_AT, self._written)
        at = _ENTRIES_AT + self._written % format.ENTRIES * format.ENTRY_BYTES
        _COUNT.pack_into(self._map, at, 0)

    def failed(self, in_call: Sequence[Any] = (), is_new: bool = False) -> None:
        """Writes down that the last launch has failed: that of ``in_call``, if that is known.

        ``is_new``: that launch is not recorded, as JAX has raised the error where it was to return.
        Where its function is not known, it was one of the same devices as the launch before it.
        """
        with self._lock:
            if self._has_failed:
                return
            if self._guess is None:
                self.look(in_call, in_flight=True)
            if self._guess is None and is_new and (before := self._last()) is not None:
                self._guess_that(before, is_sure=False)
            self._has_failed = True
            if self._written:
                self._mark(State.RAISED)

    def _last(self) -> Launched | None:
        """A program of the same devices as the last launch."""
        entries = self.read(1).rings[0].entries
        clique = entries[-1].clique if entries else None
        known = filter(None, self._launched.values())
        return next((each for each in known if each.clique == clique), None)

    def _mark(self, state: State) -> None:
        self._is_marked = state is State.ENTERED
        at = _ENTRIES_AT + (self._written - 1) % format.ENTRIES * format.ENTRY_BYTES
        [entered] = struct.unpack_from("<q", self._map, at + _ENTERED_AT)
        # When it ended is not known: an error that followed from it came later in any case.
        struct.pack_into("<q", self._map, at + _DONE_AT, 0 if self._is_marked else entered)
        self._map[at + _STATE_AT] = int(state)

    def leave(self, state: int) -> None:
        """Writes down how the program has ended."""
        struct.pack_into("<I", self._map, format.STATE_AT, state)

    def read(self, latest: int | None = None) -> ProcessRecord:
        """The record as it is now."""
        with self._lock:
            whole = bytes(self._map)
        return format.parse(whole, latest=latest)

    def has_collectives(self, fingerprint: bytes) -> bool | None:
        """Whether a program has them; None: it was not launched."""
        known = [(one.key, one.at) for one in compilations.of_executable(fingerprint)]
        found = [self._launched[key] is not None for key in known if key in self._launched]
        return found[-1] if found else None

    def programs(self) -> dict[int, Program]:
        """The programs that were launched, by the run id of their entries."""
        return {each.run_id: each.program for each in list(self._launched.values()) if each}


def _hash(numbers: Sequence[int]) -> int:
    digest = hashlib.blake2b(repr(list(numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _representatives(devices: Sequence[int], owner: Mapping[int, int]) -> tuple[int, ...]:
    """The first device of each process that has some of ``devices``, by the processes' numbers."""
    first: dict[int, int] = {}
    for device, process in sorted(owner.items()):
        first.setdefault(process, device)
    return tuple(first[p] for p in sorted({owner[device] for device in devices}))


def sites_of(programs: Mapping[int, Program]) -> tuple[run_records.Site, ...]:
    """The lines of launched programs, by the run ids of their launches."""
    return tuple(
        run_records.Site(
            program=run_id,
            fingerprint=one.executable or one.key,
            module=one.name,
            channel=1,
            op=format.OPS[format.Op.PROGRAM],
            op_name="",
            file="",
            line=0,
            shape="",
            used_file=one.at.rpartition(":")[0],
            used_line=int(one.at.rpartition(":")[2] or 0),
            arguments=one.arguments,
            thread=one.thread,
        )
        for run_id, one in programs.items()
    )


def empty(own: Peer, count: int, attempt: int, device: int) -> ProcessRecord:
    """The record of one of ``count`` processes, whose first device is ``device``."""
    return ProcessRecord(
        own.process,
        count,
        own.pid,
        own.host_name,
        own.label,
        attempt,
        monotonic_ns=time.monotonic_ns(),
        realtime_ns=time.time_ns(),
        rings=(Ring(device, 0, 0, ()),),
    )
