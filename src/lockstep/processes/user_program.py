"""Runs the user's program as ``__main__``, as Python would.

The program's module has the name ``__main__`` and the attributes that Python sets: classes of the
program can be pickled, ``multiprocessing`` can import it in its children, debuggers find its lines.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import linecache
import os
import runpy
import sys
import sysconfig
import traceback
import types
from collections.abc import Sequence

_OURS = os.path.dirname(__file__) + os.sep
_LIBRARIES = (
    os.path.dirname(os.path.dirname(_OURS)) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
)
_CODE = "<string>"
"""The file name of ``-c code``, as Python calls it."""
_MACHINERY = ("<frozen runpy>", "<frozen importlib._bootstrap>", runpy.__file__)


def prepare(program: Sequence[str]) -> None:
    """Sets ``sys.argv`` and ``sys.path`` for `script.py`, ``-m module`` or ``-c code``."""
    if program[0] == "-c":
        sys.argv[:] = ["-c", *program[2:]]
        first = ""  # as Python: the directory in which the program is at the time of an import
    elif program[0] == "-m":
        sys.argv[:] = list(program[1:])
        first = os.getcwd()
    else:
        sys.argv[:] = list(program)
        first = os.path.dirname(os.path.realpath(program[0]))
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, first)


def run(program: Sequence[str]) -> None:
    """Runs the program to its end, and raises what the program raises."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    if program[0] == "-m":
        # The private function that `python -m` calls. It fills the module in sys.modules.
        try:
            runpy._run_module_as_main(program[1])  # type: ignore[attr-defined]
        except SystemExit as error:
            if not isinstance(error.code, str) or own_traceback(error.__traceback__) is not None:
                raise
            # An error of runpy's own: the program has not been started.
            raise ImportError(error.code.removeprefix(f"{sys.executable}: ")) from None
        return
    if program[0] == "-c":
        text = program[1]
        # Lets tracebacks show the lines of the code.
        linecache.cache[_CODE] = (len(text), None, text.splitlines(keepends=True), _CODE)
        exec(compile(text, _CODE, "exec", dont_inherit=True), main.__dict__)
        return
    path = os.path.abspath(program[0])
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def own_traceback(trace: types.TracebackType | None) -> types.TracebackType | None:
    """``trace`` from the program's first line on, without the frames of the launcher."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OURS) and file not in _MACHINERY:
            break
        trace = trace.tb_next
    return trace


def place_in_program(trace: types.TracebackType | None) -> str:
    """`` at FILE:LINE``, the innermost line outside libraries; empty if there is none."""
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if not f.filename.startswith(("<", *_LIBRARIES))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
