"""The lines and calls of the user's program that make a collective; ``--strict`` compares them.

With one device per process, XLA runs a collective on the user's thread, so the lines are on the
stack. With several devices, XLA runs it on threads of its own, without a frame of the program. Then
(`note_executions`) the lines are recorded on the user's thread when it executes a program, and the
thread waits until the execution has ended. So a collective on a thread without lines belongs to the
only execution in flight. If several threads execute programs at the same time from different lines,
the site is unknown, and an unknown site is equal to every other one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import itertools
import json
import keyword
import linecache
import os
import sys
import sysconfig
import threading
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from lockstep import _jax_compat
from lockstep.flight_recorder.run_records import Caller

UNKNOWN = 0
PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHONS_OWN = f"{Path(os.__file__).parent}{os.sep}"
_SCRIPTS = f"{sysconfig.get_path('scripts')}{os.sep}"
"""The scripts of installed packages, which only call them."""
_AHEAD_OF_TIME = f"jax{os.sep}_src{os.sep}stages.py"
_PACKAGES = ("/site-packages/", "/dist-packages/")

_executing: dict[int, int] = {}
"""Threads that are executing a program now, and the site of each."""
_known: dict[int, tuple[Caller, ...]] = {}
_own_code: dict[int, tuple[bool, CodeType]] = {}
"""Whether a code object is of the user's program, by its id. The object is kept, so that no other
one gets its id."""
_site_of: dict[tuple[int, ...], int] = {}
"""The site of a stack, by the code and the instruction of each of the user's frames in it."""
_path = ""
_columns_of: dict[tuple[int, int], tuple[str, CodeType]] = {}
"""The keys are code and instruction; the code object is kept, so that its id is not reused."""


@functools.cache
def note_executions() -> None:
    """From now on records the lines of every execution, and waits until the execution has ended.

    This disables JAX's fast path for a program that ran before, which costs more than the rest.
    """
    _jax_compat.install(
        "executions of programs",
        "--strict compares no lines where a process has several devices.",
        lambda: _jax_compat.around_executions(_note),
    )


def keep_in(path: str) -> None:
    """From now on writes the lines of each site to a file, for the other processes."""
    global _path
    _path = path
    for site, callers in list(_known.items()):
        _write(site, callers)


def known() -> dict[int, tuple[Caller, ...]]:
    """The lines of each recorded site, the innermost first."""
    return dict(_known)


def of_this_collective() -> int:
    """A hash of the places in the user's program that make this call, or `UNKNOWN`.

    The engine calls this on the thread that runs the collective.
    """
    own = _site(sys._getframe(1))
    if own != UNKNOWN:
        return own
    sites = set(_executing.values())
    return sites.pop() if len(sites) == 1 else UNKNOWN


def innermost(frame: FrameType | None = None) -> Caller | None:
    """The innermost line of the user's program on a stack; None: there is none.

    If the program itself is an installed package, the line that called JAX. ``frame`` is the
    stack's innermost frame; None: that of this thread.
    """
    library, frame = None, frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_on_the_way(file):
            here = Caller(file, frame.f_lineno or 0, frame.f_code.co_name)
            if not is_library(file):
                return here
            library = library or here
        frame = frame.f_back
    return library


def dispatching_thread() -> str:
    """The name of this thread, if it calls the program that is being compiled; else "".

    ``jitted.lower(x).compile()`` only compiles: another thread may call the program later.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile" and code.co_filename.endswith(_AHEAD_OF_TIME):
            return ""
        frame = frame.f_back
    return threading.current_thread().name


def _note(execute: Callable[[], Any]) -> Any:
    thread = threading.get_ident()
    # A host callback may execute programs while the program that calls it runs.
    outer = _executing.get(thread)
    _executing[thread] = _site(sys._getframe(1))
    try:
        return execute()
    finally:
        if outer is None:
            del _executing[thread]
        else:
            _executing[thread] = outer


def _site(frame: FrameType | None) -> int:
    """The site of a stack; a stack that was seen before takes a fraction of a microsecond a frame.

    Code objects are looked up by their ids, because their own hashes take long.
    """
    key, own = [], []
    while frame is not None:
        code = frame.f_code
        known = _own_code.get(id(code))
        if known is None:
            known = _own_code[id(code)] = (not is_library(code.co_filename), code)
        if known[0]:
            key += (id(code), frame.f_lasti)
            own.append(frame)
        frame = frame.f_back
    seen = tuple(key)
    if seen not in _site_of:
        _site_of[seen] = _new_site(own)
    return _site_of[seen]


def _new_site(stack: Sequence[FrameType]) -> int:
    if not stack:
        return UNKNOWN
    places = [
        (f.f_code.co_filename, f.f_lineno, f.f_code.co_name, _columns(f.f_code, f.f_lasti))
        for f in stack
    ]
    # The processes may have the program in different folders.
    same = [(os.path.basename(file), *rest) for file, *rest in places]
    digest = hashlib.blake2b(repr(same).encode(), digest_size=4).digest()
    site = int.from_bytes(digest, "little") | 1
    if site not in _known:
        _known[site] = tuple(Caller(*place) for place in places)
        _write(site, _known[site])
    return site


def _write(site: int, callers: tuple[Caller, ...]) -> None:
    """Writes the lines before the collective begins, so that they are there with its record."""
    places = [[c.file, c.line, c.function, c.columns] for c in callers]
    line = json.dumps({"site": site, "callers": places})
    # The job goes on without the lines where they cannot be written.
    with contextlib.suppress(OSError):
        if _path:
            with open(_path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _columns(code: CodeType, instruction: int) -> str:
    """The columns of the call that the frame is in; "": Python does not have them."""
    key = id(code), instruction
    if key not in _columns_of:
        first, last, begin, end = _position(code, instruction)
        text = ""
        if begin is not None and end is not None:
            text = f"{begin + 1}-{end}" if first == last else f"{begin + 1}-{last}:{end}"
        _columns_of[key] = text, code
    return _columns_of[key][0]


def _position(code: CodeType, instruction: int) -> tuple[int | None, ...]:
    """First and last line, first and last byte of an instruction; None: Python does not have it."""
    return next(itertools.islice(code.co_positions(), max(0, instruction) // 2, None))


def text_of_call(frame: FrameType, instruction: int | None = None) -> str:
    """The source text of the call that a frame is in, or was in at ``instruction``; "": unknown."""
    at = frame.f_lasti if instruction is None else instruction
    first, last, begin, end = _position(frame.f_code, at)
    if first is None or last is None:
        return ""
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    # The columns are those of bytes. The end is cut first: both may be on one line.
    ends = [line.encode() for line in lines]
    ends[-1:] = [line[:end] for line in ends[-1:]]
    ends[:1] = [line[begin:] for line in ends[:1]]
    return b"".join(ends).decode()


def called(frame: FrameType, instruction: int | None = None) -> list[Any]:
    """What may be called where a frame stands; empty: not known.

    ``step(x)`` and ``self.step(x)`` call one function, ``(save if last else step)(x)`` one of two,
    ``steps[name](x)`` one of those in a container. For ``jax.jit(step)(x)`` stands ``step``, of
    which the function is made. ``step(x).block_until_ready()`` is no call of ``step``.
    ``instruction``: where the frame stood when it raised, as it may have gone on to a
    handler. Runs no code of the program.
    """
    found = []
    for names in _names_of_call(text_of_call(frame, instruction)):
        value = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
        for name in names[1:]:
            value = inspect.getattr_static(value, name, None)
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, (list, tuple)):
            found += value
        else:
            found.append(value)
    return [_without_partial(value) for value in found]


def _without_partial(value: Any) -> Any:
    while isinstance(value, functools.partial):
        value = value.func
    return value


def _names_of_call(text: str) -> list[list[str]]:
    """``[["self", "step"]]`` for ``self.step(x)``: the names in what is called.

    Does not use `ast`, as this runs on threads of ours. CPython counts the depth of a tree for all
    threads together. The garbage collector may switch threads while the program makes one, and
    the program's ``ast.parse`` then raises SystemError.
    """
    try:
        tokens = [
            token.string
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
        ]
    except (tokenize.TokenError, SyntaxError):
        return []
    head = tokens[: _last_bracket(tokens)]
    if jitted := _jitted_at_once(head):
        return [jitted]
    # A call in what is called returns the function, which no name is.
    is_chosen = head[:1] == ["("] and _last_bracket(head) == 0
    if "(" in head[is_chosen:] or not _is_one_operand(head):
        return []
    names: list[list[str]] = []
    for before, token in zip(["", *head], head, strict=False):
        if not token.isidentifier() or keyword.iskeyword(token):
            continue
        if before == ".":
            if not names:
                return []
            names[-1].append(token)
        else:
            names.append([token])
    return names


def _jitted_at_once(tokens: Sequence[str]) -> list[str]:
    """``["model", "step"]`` for ``jax.jit(model.step, donate_argnums=0)``; empty: it is no such.

    The function that the call has made has no name, and its program is known by what it wraps.
    """
    inner = tokens[_last_bracket(tokens) :] if tokens[-1:] == [")"] else []
    if not inner or tokens[-len(inner) - 1 : -len(inner)] not in (["jit"], ["pjit"]):
        return []
    end = next((i for i, token in enumerate(inner) if token in (",", ")")), 0)
    names, dots = inner[1:end:2], inner[2:end:2]
    if all(map(str.isidentifier, names)) and all(dot == "." for dot in dots):
        return list(names)
    return []


def _is_one_operand(tokens: Sequence[str]) -> bool:
    """Whether there is no operator outside of brackets, as in ``-step(x)``."""
    depth = 0
    for token in tokens:
        depth -= token in (")", "]", "}")
        if depth == 0 and not (token.isidentifier() or token in (".", *"()[]{}")):
            return False
        depth += token in ("(", "[", "{")
    return True


def _last_bracket(tokens: Sequence[str]) -> int:
    """The index of the token that opens the bracket which the last token closes; 0: none."""
    depth = 0
    if not tokens or tokens[-1] != ")":
        return 0
    for at in range(len(tokens) - 1, -1, -1):
        depth += (tokens[at] in (")", "]", "}")) - (tokens[at] in ("(", "[", "{"))
        if depth == 0:
            return at
    return 0


@functools.cache
def is_library(file: str) -> bool:
    """Whether the file is of an installed package, or Lockstep's."""
    return any(part in file for part in (*_PACKAGES, PACKAGE, "<frozen"))


@functools.cache
def is_on_the_way(file: str) -> bool:
    """Whether the file is of Lockstep, JAX or Python: frames between the user and the compiler."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("jax", "jaxlib"))
    folders = (f"{Path(file).parent}{os.sep}" for file in files if file)
    if file.startswith((PACKAGE, _SCRIPTS, "<frozen", *folders)):
        return True
    # Libraries may be installed below what is Python's own.
    return file.startswith(_PYTHONS_OWN) and not any(part in file for part in _PACKAGES)
