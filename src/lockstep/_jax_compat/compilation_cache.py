"""JAX's persistent compilation cache, shared by the processes of a job on CPUs.

JAX gives the same program another key on each process: the key has the ids of the devices of a
program on this process alone, and a topology that differs between processes. Only process 0 writes,
so the others compile at every start. `share_compilations` gives such programs one key, and lets
every process write.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lockstep._jax_compat import hooks
from lockstep._jax_compat.settings import setting

_SHARE = "jax_share_binary_between_hosts"
_HIT = "/jax/compilation_cache/cache_hits"


class Miss(NamedTuple):
    """A program that the cache does not have."""

    folder: str
    """The cache's folder, on a file system of this host."""
    key: str
    read: Callable[[], Any | None]
    """Looks once more; returns the executable, or None."""
    compile: Callable[[], Any]
    """Compiles the program, writes it into the cache if it is to be kept, and returns it."""
    is_kept: Callable[[], bool]
    """Whether the cache has the program now."""


class _Thread(threading.local):
    read: Callable[[], Any] | None = None
    """The last look into the cache."""
    writes = False
    """Whether this thread may write, whatever process it is in."""


_thread = _Thread()


def share_compilations(
    applies: Callable[[], bool], machine: str, around: Callable[[Miss], Any]
) -> None:
    """Gives a program of CPUs the same key in all processes where ``applies()``.

    ``machine`` is a part of the key: programs are compiled for the processor of this host.
    ``around`` gets each program that the cache does not have, and returns the executable.
    Raises AttributeError where this jax lacks a name.
    """
    cache_key: Any = importlib.import_module("jax._src.cache_key")
    compiler: Any = importlib.import_module("jax._src.compiler")
    lru_cache: Any = importlib.import_module("jax._src.lru_cache")
    setting(_SHARE)
    suffix = lru_cache._CACHE_SUFFIX
    key = _key(cache_key.get, applies)
    accelerators = _accelerators(cache_key._hash_accelerator_config, applies, machine)
    read = _reading(compiler._cache_read)
    compiling = _compiling(compiler, applies, around, suffix)
    put = _whole(lru_cache.LRUCache.put, suffix)
    state = _AsProcess0(compiler.distributed)
    cache_key.get, cache_key._hash_accelerator_config = key, accelerators
    compiler._cache_read, compiler._compile_and_write_cache = read, compiling
    compiler.distributed, lru_cache.LRUCache.put = state, put


def _key(get: Callable[..., str], applies: Callable[[], bool]) -> Callable[..., str]:
    @functools.wraps(get)
    def key(
        module: Any, devices: Any, compile_options: Any, backend: Any, *args: Any, **options: Any
    ) -> str:
        if backend.platform == "cpu" and applies():
            compile_options = _with_local_ids(compile_options, list(devices.flat), backend)
        return get(module, devices, compile_options, backend, *args, **options)

    return key


def _with_local_ids(compile_options: Any, devices: Sequence[Any], backend: Any) -> Any:
    """The options of a program on devices of this process alone, whose places among them stand in
    place of their ids. The executable gets its ids when it is loaded."""
    import numpy as np

    assignment = compile_options.device_assignment
    places = {device.id: place for place, device in enumerate(backend.local_devices())}
    if assignment is None or any(device.id not in places for device in devices):
        return compile_options
    shape = (assignment.replica_count(), assignment.computation_count())
    local = np.array([places[device.id] for device in devices], dtype=np.int32)
    changed = copy.deepcopy(compile_options)
    changed.device_assignment = type(assignment).create(local.reshape(shape))
    return changed


def _accelerators(
    original: Callable[..., None], applies: Callable[[], bool], machine: str
) -> Callable[..., None]:
    @functools.wraps(original)
    def hashing(hash_obj: Any, accelerators: Any) -> None:
        if not (applies() and all(device.platform == "cpu" for device in accelerators.flat)):
            return original(hash_obj, accelerators)
        kinds = [device.device_kind for device in accelerators.flat]
        hash_obj.update(repr((kinds, machine)).encode())

    return hashing


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(*args: Any, **options: Any) -> Any:
        _thread.read = functools.partial(original, *args, **options)
        return _thread.read()

    return read


def _compiling(
    compiler: Any, applies: Callable[[], bool], around: Callable[[Miss], Any], suffix: str
) -> Callable[..., Any]:
    original = compiler._compile_and_write_cache
    import jax.monitoring

    cache: Any = importlib.import_module("jax._src.compilation_cache")
    find_cache = cache._get_cache

    @functools.wraps(original)
    def compile_once(
        backend: Any,
        module: Any,
        devices: Any,
        options: Any,
        host_callbacks: Any,
        name: str,
        cache_key: str,
    ) -> Any:
        def compile_and_write() -> Any:
            _thread.writes = True
            try:
                return original(backend, module, devices, options, host_callbacks, name, cache_key)
            finally:
                _thread.writes = False

        def look_again() -> Any | None:
            if read is None or (found := read()[0]) is None:
                return None
            jax.monitoring.record_event(_HIT)
            return found

        # A callback is a number of this process. With jax_share_binary_between_hosts process 0
        # compiles for all, and the others wait for it here: they must not keep it waiting.
        shared = setting(_SHARE)
        folder = str(getattr(find_cache(backend), "path", "")) if applies() else ""
        read = _thread.read
        if backend.platform != "cpu" or not folder or "://" in folder or host_callbacks or shared:
            return original(backend, module, devices, options, host_callbacks, name, cache_key)
        path = os.path.join(folder, cache_key + suffix)
        return around(
            Miss(
                folder,
                cache_key,
                look_again,
                compile_and_write,
                lambda: os.path.exists(path),
            )
        )

    return compile_once


class _AsProcess0(hooks.InPlaceOf):
    """``jax._src.distributed`` for JAX's compiler, which writes the cache in process 0 alone."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return _State(value) if name == "global_state" and _thread.writes else value


class _State(hooks.InPlaceOf):
    process_id = 0


def _whole(put: Callable[..., None], suffix: str) -> Callable[..., None]:
    """Writes an entry under another name, so that no process reads a part of it.

    With a limit for its size, the cache has a lock for readers and writers.
    """

    @functools.wraps(put)
    def put_whole(self: Any, key: str, *args: Any, **options: Any) -> None:
        folder = str(self.path)
        final = os.path.join(folder, key + suffix)
        if self.eviction_enabled or "://" in folder or not key or os.path.exists(final):
            return put(self, key, *args, **options)
        part = f"{key}.{os.uname().nodename}.{os.getpid()}.{threading.get_ident()}"
        path = os.path.join(folder, part + suffix)
        with contextlib.suppress(OSError):  # of an earlier attempt: the cache replaces nothing
            os.unlink(path)
        put(self, part, *args, **options)
        os.replace(path, final)

    return put_whole
