"""Records and watches the launches of programs, over collectives that Lockstep does not run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._stderr import complain
from lockstep.callsites import frames
from lockstep.flight_recorder.format import ProcessRecord
from lockstep.job import current_job, kv_store, topology
from lockstep.programs import compilations, gloo_faults, launches
from lockstep.programs.compilations import Program
from lockstep.watchdog import main_thread, shutdown_hook
from lockstep.watchdog.library_counts import LibraryCounts
from lockstep.watchdog.own_waits import OwnWaits
from lockstep.watchdog.record_reader import write_sites
from lockstep.watchdog.source import Source
from lockstep.watchdog.store_watch import Watch

HOOK = "the watch of launches"
_GLOO = "gloo"


def start(library: str, counts: LibraryCounts | None = None) -> None:
    """To be called when JAX has made its devices, before the first program is compiled.

    ``library``: what moves the data, ``gloo``; ``counts``: what it says of itself. Does nothing
    outside of a job.
    """
    if _jax_compat.distributed_client() is None:
        return
    process, count = _jax_compat.distributed_place()
    config = _config.current()
    if count == 1 or not config.record:
        return
    compilations.note(current_job.part(OwnWaits).note_compilation)
    # Registered before this watch's own end, the hook waits for what is dispatched first.
    shutdown_hook.watch()
    owner = {device.id: device.process_index for device in _jax_compat.all_devices()}
    peer = topology.this_process(process, config.host_id, "", 0)
    if folder := config.process_dir(process):
        current_job.part(OwnWaits).keep_in(str(folder / _run_files.WAITS))
    record = _record(folder, peer, count, owner)
    if not _note_launches():
        return
    if library == _GLOO and (jaxlib := _jax_compat.gloo_scatters_wrong()):
        record.new_program = _WrongScatters(jaxlib, process, owner).look
    looked = _Looks(record)
    store = kv_store.of_application(_jax_compat.distributed_client())
    source = Source(library, looked.read, record.programs, owner, record.has_collectives, counts)
    watch = Watch(store, peer, count, source, folder)
    current_job.part(_Watched).watch = watch
    _recording.record = record
    watch.start()
    shutdown_hook.at_the_end(looked.leave, watch.stop)
    shutdown_hook.explain_by(functools.partial(_explain, looked, watch))


class _WrongScatters:
    """Warns once of a reduce-scatter that gloo may compute wrong."""

    def __init__(self, jaxlib: str, process: int, owner: Mapping[int, int]) -> None:
        self._jaxlib, self._process, self._owner = jaxlib, process, owner
        self._has_warned = False

    def look(self, program: Program, text: str) -> None:
        """``text``: of the program, as it was compiled."""
        is_first = self._process == min(self._owner[device] for device in program.devices)
        size = gloo_faults.reduce_scatter_bytes(text, len(program.devices))
        if is_first and size >= gloo_faults.MIN_BYTES and not self._has_warned:
            self._has_warned = True
            complain(gloo_faults.warning(program.title, size, self._jaxlib))


def _explain(looked: _Looks, watch: Watch) -> str:
    looked.note_failure()
    return watch.explain()


class _Recording:
    """The record of the job that this process is in: each launch looks it up."""

    record: launches.Record | None = None


_recording = _Recording()


class _Watched(current_job.Part):
    """The watch of one job."""

    watch: Watch | None = None

    def close(self) -> None:
        """Ends record and watch, before the client of JAX's store is gone."""
        _recording.record = None
        if self.watch is not None:
            self.watch.stop()


@functools.cache
def _note_launches() -> bool:
    """Has launches recorded from now on; returns whether this jax has a place for it."""

    def put_in() -> None:
        _jax_compat.note_launches(_quietly("begin"), _quietly("end"), _quietly("learn"), _fast)

    if _jax_compat.can_watch_fast_path():
        watched = functools.partial(_jax_compat.watch_fast_path, _note_caught)
        _jax_compat.install(
            _jax_compat.FAST_PATH_ERRORS, _jax_compat.FAST_PATH_ERRORS_LOST, watched
        )
    return _jax_compat.install(_jax_compat.LAUNCHES, _jax_compat.LAUNCHES_LOST, put_in)


def _note_caught(error: ValueError) -> None:
    """The program has caught an error, which may be that of a collective on JAX's fast path."""
    if shutdown_hook.note_failure(str(error)) and (record := _recording.record) is not None:
        record.failed(_called_in(error.__traceback__), is_new=True)


def _quietly(name: str) -> Callable[..., Any]:
    """Passes on what JAX tells. An error ends the record, and never the program."""
    of_record = getattr(launches.Record, name)
    recording = _recording

    def noting(*told: Any) -> Any:
        if (record := recording.record) is None:
            return None
        try:
            return of_record(record, *told)
        except Exception as error:  # whatever it is, the program's own call goes on
            _give_up(error)
            return None

    return noting


def _fast(jitted: Any, args: Any, kwargs: Any, results: Any, recording: Any = _recording) -> None:
    """`Record.fast`, as `_quietly` would make it, in less time: JAX calls it at each launch."""
    if (record := recording.record) is not None:
        try:
            record.fast(jitted, args, kwargs, results)
        except Exception as error:  # whatever it is, the program's own call goes on
            _give_up(error)


def _give_up(error: Exception) -> None:
    _recording.record = None
    _jax_compat.report(_jax_compat.LAUNCHES, _jax_compat.LAUNCHES_LOST, error)


def _record(
    folder: Path | None, peer: topology.Peer, count: int, owner: dict[int, int]
) -> launches.Record:
    device = min(id for id, process in owner.items() if process == peer.process)
    empty = launches.empty(peer, count, _config.current().attempt, device)
    if folder is None:
        descriptor = os.memfd_create("lockstep-launches")
    else:
        path = folder / _run_files.RECORDER
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    record = launches.Record(descriptor, empty, owner)
    if folder is not None:
        sites = str(folder / _run_files.SITES)
        record.new_sites = lambda some: write_sites(sites, "a", some)
    return record


class _Looks:
    """Reads the record, with what the main thread and the devices do at the moment."""

    def __init__(self, record: launches.Record) -> None:
        self._record = record
        self._written = -1

    def read(self, latest: int | None) -> ProcessRecord:
        found = self._record.read(latest)
        written = found.rings[0].written
        if written == self._written:
            # Nothing was launched since the last look.
            in_flight = bool(_jax_compat.computing_devices())
            frame = main_thread.frame()
            self._record.look(frames.called(frame) if frame else (), in_flight, written)
            found = self._record.read(latest)
        self._written = found.rings[0].written
        return found

    def leave(self, state: int) -> None:
        if not self.note_failure():
            self._record.look((), in_flight=False)
        self._record.leave(state)

    def note_failure(self) -> bool:
        """Writes down the launch that has failed, if one has, as far as the program was told."""
        has_failed, error = shutdown_hook.failed_collective()
        if has_failed:
            called = _called_in(error.__traceback__) if error else ()
            self._record.failed(called, is_new=isinstance(error, ValueError))
        return has_failed


def _called_in(trace: TracebackType | None) -> Sequence[Any]:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return frames.called(trace.tb_frame, trace.tb_lasti) if trace else ()
