"""What jaxlib and JAX put around the texts of errors."""

from __future__ import annotations

import re

INTERRUPT = "is_of_watch"
"""The attribute of an exception that a watch raises in another thread."""
OF_THE_ENGINE = "MPI error: lockstep: "
"""Before the engine's own text: jaxlib takes the engine for an MPI."""
_PREFIXES = ("Error dispatching computation: ", "Buffer Definition Event: ")
"""jaxlib puts one of these before an error for each program whose operand has failed with it."""
_CODE = r"[A-Z]+(?:_[A-Z]+)*: "
"""The code of a status, such as ``INVALID_ARGUMENT``."""
ENGINE_ERROR = rf"{_CODE}(?:[A-Z][\w ]*: )*?{OF_THE_ENGINE}(?P<again>earlier failure: )?"
"""A pattern: how the message of an engine's error begins, as XLA and JAX pass it on."""
ENGINES = rf"^\S+: (?:{ENGINE_ERROR}|(?<=Error: )lockstep: )"
"""A pattern: the type of an exception, and the beginning of its message, where that is what the job
has failed with on all processes. A barrier and the store watch raise it as exceptions of theirs."""
_PREFIXED = re.compile(rf"({_CODE})((?:{'|'.join(_PREFIXES)})+)")
_OF_COLLECTIVE = re.compile(rf"{_CODE}(?:{'|'.join(_PREFIXES)})*(?:MPI error|Gloo|NCCL|RCCL)\b")


def without_prefixes(text: str) -> str:
    """``text`` of an error of jaxlib's, with each prefix once, and none before the engine's text.

    A loop that reads its loss every hundred steps gets "Error dispatching computation: " a hundred
    times: each step's result has failed because the one before has.
    """
    found = _PREFIXED.match(text)
    if found is None:
        return text
    rest = text[found.end() :]
    once = [prefix for prefix in _PREFIXES if prefix in found[2]]
    return found[1] + ("" if rest.startswith(OF_THE_ENGINE) else "".join(once)) + rest


def is_engines(error: BaseException) -> bool:
    """Whether an exception is that of the engine, which all processes raise."""
    return OF_THE_ENGINE in str(error)


def is_interrupt(error: BaseException) -> bool:
    """Whether a watch has raised it in this thread, whatever line the thread was in."""
    return getattr(error, INTERRUPT, False)


def comes_too_late(error: BaseException) -> bool:
    """Whether ``jax.distributed.initialize()`` raised this because JAX has made its backends."""
    return isinstance(error, RuntimeError) and "initialize() must be called before" in str(error)


def is_of_collective(text: str) -> bool:
    """Whether the error with this ``text`` is that of a collective, whatever library ran it."""
    return _OF_COLLECTIVE.match(text) is not None


def first_line(text: str) -> str:
    """The first line of an error's text.

    The text for an exception of a callback is a whole traceback: then the exception follows what
    stands before the traceback.
    """
    first, *rest = NOTE_OF_FRAMES.sub("", text).splitlines() or [""]
    if not first.endswith(_TRACEBACK):
        return first
    raised = next((line for line in rest if line and not line.startswith(" ")), "")
    return first.removesuffix(_TRACEBACK) + raised


_TRACEBACK = "Traceback (most recent call last):"
NOTE_OF_FRAMES = re.compile(
    r"^-{20}\nFor simplicity, JAX has removed its internal frames .*\n?", re.MULTILINE
)
