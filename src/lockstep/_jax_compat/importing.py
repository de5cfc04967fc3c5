"""Runs code when jax is imported, and sets variables for jax and jaxlib while they load.

jaxlib reads ``MPITRAMPOLINE_LIB`` in a constructor of its shared library, and jax reads
``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` when it is imported. Each is in the environment only at that
time: a child program that uses JAX without Lockstep must not inherit them, because the engine would
not be configured there.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.machinery
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep._jax_compat import hooks

Variables = Callable[[], Mapping[str, str]]
"""Asked when the import begins: the program may have set variables itself by then."""


def jaxlib_is_loaded() -> bool:
    """Whether this process has mapped jaxlib's library, and so has run MPItrampoline's loader."""
    if not any(name == "jaxlib" or name.startswith("jaxlib.") for name in sys.modules):
        return False
    with open("/proc/self/maps") as maps:
        return any("libjax_common.so" in line for line in maps)


def after_jax_import(callback: Callable[[], None], jax: Variables, jaxlib: Variables) -> None:
    """Runs ``callback`` as soon as jax is imported; at once when it is already.

    jax is imported with the variables of ``jax``, jaxlib's libraries are loaded with those of
    ``jaxlib``.
    """
    if "jax" in sys.modules:
        _run(callback)
        return
    # A lockstep that is imported again, after it was taken out of sys.modules, has left a finder.
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__qualname__ != _Finder.__qualname__]
    sys.meta_path.insert(0, _Finder(callback, jax, jaxlib))


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:  # whatever it is, `import jax` has succeeded
        hooks.report("after the import of jax", "what Lockstep does there.", error)


_lock = threading.Lock()
_users: collections.Counter[str] = collections.Counter()
_before: dict[str, str | None] = {}


@contextlib.contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the block. Of several importing threads, the last one removes them.

    The lock is not held during the block, because Python holds its own locks during an import.
    """
    with _lock:
        for name in variables:
            if not _users[name]:
                _before[name] = os.environ.get(name)
            _users[name] += 1
        os.environ.update(variables)
    try:
        yield
    finally:
        with _lock:
            _users.subtract(variables.keys())
            for name in [name for name in variables if not _users[name]]:
                os.environ.pop(name, None)
                if (value := _before.pop(name)) is not None:
                    os.environ[name] = value


class _Finder:
    """Finds jax, and jaxlib's extension modules, by the finders behind it.

    It stays installed until the import of jax has succeeded: a program may search for jax
    (``importlib.util.find_spec``), or fail to import it, and import it later.
    """

    def __init__(self, callback: Callable[[], None], jax: Variables, jaxlib: Variables) -> None:
        self._callback = callback
        self._jax = jax
        self._jaxlib = jaxlib

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "jax" and not fullname.startswith("jaxlib."):
            return None
        finders = sys.meta_path
        # Asks the finders behind this one only: another of this class would ask this one in turn.
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        for find in (getattr(finder, "find_spec", None) for finder in behind):
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                self._wrap(spec)
                return spec
        return None

    def _wrap(self, spec: importlib.machinery.ModuleSpec) -> None:
        if spec.name == "jax" and spec.loader is not None:
            loader: Any = _JaxLoader(spec.loader, self._jax, self._imported)
            spec.loader = loader
        elif isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
            loader = _JaxlibLoader(spec.loader, self._jaxlib)
            spec.loader = loader

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _run(self._callback)


class _Loader(hooks.InPlaceOf):
    """A module's own loader, from which the classes below differ in one thing each."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # A later look at the module must not find this class in its loader's place.
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)


class _JaxLoader(_Loader):
    def __init__(self, loader: Any, variables: Variables, imported: Callable[[], None]) -> None:
        super().__init__(loader)
        self._variables = variables
        self._run_imported = imported

    def exec_module(self, module: types.ModuleType) -> None:
        with _in_environment(self._variables()):
            super().exec_module(module)
        self._run_imported()


class _JaxlibLoader(_Loader):
    def __init__(self, loader: Any, variables: Variables) -> None:
        super().__init__(loader)
        self._variables = variables

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        # Where the shared library is loaded, and its constructors run.
        with _in_environment(self._variables()):
            return super().create_module(spec)
