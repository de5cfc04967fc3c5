"""Hooks into jax that fail soft: with a changed jax only one feature is lost.

A hook needs private names of jax. If one does not exist, the hook is left out, and process 0 prints
one line with the hook, the version of jax, and the lost feature. `import jax` always succeeds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from lockstep import _config
from lockstep._errors import ConfigError
from lockstep._jax_compat import versions
from lockstep._stderr import complain

_in: set[str] = set()


def install(hook: str, lost: str, put_in: Callable[[], None]) -> bool:
    """Calls ``put_in``; returns whether it succeeded, and reports a failure.

    ``lost`` names what does not work without the hook, and what to do instead.
    """
    try:
        put_in()
    except Exception as error:
        report(hook, lost, error)
        return False
    _in.add(hook)
    return True


def report(hook: str, lost: str, error: BaseException | str) -> None:
    """Prints one line about a hook that is left out, once in a job."""
    why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    version = versions.jax_version() or versions.jaxlib_version_on_disk() or "?"
    _print(
        f'the hook "{hook}" does not fit jax {version} '
        f"({' '.join(why.split())}). Lost: {lost} {_what_to_type()}"
    )


@contextlib.contextmanager
def blaming() -> Iterator[None]:
    """Adds a note to an exception of Lockstep's code in the block if this jax is not tested."""
    try:
        yield
    except Exception as error:
        if note := versions.untested_note():
            error.add_note(f"lockstep: {note}.")
        raise


def is_in(hook: str) -> bool:
    """Whether `install` has put the hook in."""
    return hook in _in


def report_version() -> None:
    """Prints one line if jax is newer than every tested version, or has a known problem."""
    if note := versions.untested_note() or versions.known_problem():
        _print(f"{note}.")


def _what_to_type() -> str:
    newest = versions.dotted(versions.NEWEST_TESTED_JAX)
    return f"Newest tested: jax {newest}; {versions.pin()}"


class InPlaceOf:
    """Takes the place of an object: what a subclass does not have is that of the object."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@functools.cache
def _print(line: str) -> None:
    with contextlib.suppress(ConfigError):
        if _config.current().process_id not in (None, 0):
            return  # all processes of a job have the same jax
    complain(line)
