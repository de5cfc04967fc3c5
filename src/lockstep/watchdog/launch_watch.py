"""Records and watches the launches of programs, over collectives that Lockstep does not run."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep.callsites import frames
from lockstep.flight_recorder.format import ProcessRecord
from lockstep.job import current_job, job_key, kv_store, topology
from lockstep.programs import compilations, launches
from lockstep.watchdog import ending, shutdown_hook
from lockstep.watchdog.record_reader import write_sites
from lockstep.watchdog.store_watch import Source, Watch

HOOK = "the watch of launches"


def start(library: str) -> None:
    """To be called when JAX has made its devices, before the first program is compiled.

    ``library``: what moves the data, ``gloo``. Does nothing outside of a job.
    """
    if _jax_compat.distributed_client() is None:
        return
    process, count = _jax_compat.distributed_place()
    config = _config.current()
    if count == 1 or not config.record:
        return
    compilations.note()
    # It is registered before this watch's own end, so that it waits for what is dispatched first.
    shutdown_hook.watch()
    owner = {device.id: device.process_index for device in _jax_compat.all_devices()}
    peer = topology.this_process(process, config.host_id, "", 0)
    folder = None
    if config.run_dir is not None:
        folder = _run_files.process_dir(Path(config.run_dir), config.attempt, process)
    watched = current_job.part(_Watched)
    watched.record = record = _record(folder, peer, count, owner)
    if not _note_launches():
        return
    looked = _Looks(record)
    store = kv_store.Store(_jax_compat.distributed_client(), job_key.job_key(count))
    source = Source(library, looked.read, record.programs, owner)
    watched.watch = watch = Watch(store, peer, count, source, folder)
    watch.start()
    shutdown_hook.at_the_end(looked.leave, watch.stop)


class _Watched(current_job.Part):
    """The record and the watch of one job."""

    record: launches.Record | None = None
    watch: Watch | None = None

    def close(self) -> None:
        """Ends them, before the client of JAX's store is gone."""
        self.record = None
        if self.watch is not None:
            self.watch.stop()


@functools.cache
def _note_launches() -> bool:
    """Whether launches are recorded from now on: by the record of the job that there is then."""
    return _jax_compat.install(
        _jax_compat.LAUNCHES,
        _jax_compat.LAUNCHES_LOST,
        lambda: _jax_compat.note_launches(
            _quietly(lambda record, *told: record.slow(*told)),
            _quietly(lambda record, *told: record.learn(*told)),
            _quietly(lambda record, *told: record.fast(*told)),
        ),
    )


def _quietly(note: Callable[..., None]) -> Callable[..., None]:
    """Passes a launch to the record. An error ends the record, and never the program."""

    def noting(*told: Any) -> None:
        watched = current_job.part(_Watched)
        if watched.record is None:
            return
        try:
            note(watched.record, *told)
        except Exception as error:
            watched.record = None
            _jax_compat.report(_jax_compat.LAUNCHES, _jax_compat.LAUNCHES_LOST, error)

    return noting


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
            self._record.look(_called(ending.main_frame()), in_flight, written)
            found = self._record.read(latest)
        self._written = found.rings[0].written
        return found

    def leave(self, state: int) -> None:
        if error := shutdown_hook.failed_collective():
            self._record.failed(_called_in(error.__traceback__))
        self._record.leave(state)


def _called_in(trace: TracebackType | None) -> Any:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return _called(trace.tb_frame) if trace else None


def _called(frame: FrameType | None) -> Any:
    """The function whose call a frame is in, if that is all that it is in; None: not known.

    ``step(x).block_until_ready()`` is no call of ``step`` any more.
    """
    if frame is None:
        return None
    try:
        call = ast.parse(frames.text_of_call(frame), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    names: list[str] = []
    at = call.func if isinstance(call, ast.Call) else None
    while isinstance(at, ast.Attribute):
        names.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return None
    found = frame.f_locals.get(at.id, frame.f_globals.get(at.id))
    for part in reversed(names):
        # Looks without running code of the program.
        own, common = (getattr(each, "__dict__", {}) for each in (found, type(found)))
        found = own.get(part, common.get(part))
    return found
