"""The engine's library against the installed jaxlib, and one collective through it.

jaxlib ends the process when the library that it loads lacks a single name, so the names are read
from jaxlib itself and looked up one by one, in a child process that a broken library may crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep import _jax_compat
from lockstep._errors import LockstepError
from lockstep._finding import Finding, ok, problem, warning
from lockstep.engine import bindings

ABI = (2, 9, 0)
LOOKUP_SECONDS = 30.0
NEWER_LOCKSTEP = "pip install --upgrade WHEEL, a newer wheel or source tree of Lockstep"
"""What works whether or not that version is published."""
SMOKE_SECONDS = 90.0
_VERSION = ("mpiabi_version_major", "mpiabi_version_minor", "mpiabi_version_patch")


@dataclasses.dataclass(frozen=True)
class EngineFacts:
    library: Path | None
    library_error: str
    compiler: str | None
    jaxlib: Path | None
    """The shared object of jaxlib that loads the engine."""
    wanted: int
    """How many names it needs."""
    lookup: Mapping[str, Any]
    """The result of `look_up`: ``missing`` and ``abi``, or ``error``."""


def look_up(library: str, names: list[str]) -> dict[str, Any]:
    """Loads ``library`` into this process: which ``names`` it lacks, and its ABI version."""
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        return {"error": str(error)}
    missing = [name for name in names if not hasattr(loaded, name)]
    abi = [
        ctypes.c_int.in_dll(loaded, name).value if hasattr(loaded, name) else -1
        for name in _VERSION
    ]
    return {"missing": missing, "abi": abi}


def _look_up_in_child(library: Path, names: set[str]) -> dict[str, Any]:
    return _answer(
        [sys.executable, "-m", "lockstep.doctor.engine", str(library)],
        LOOKUP_SECONDS,
        os.environ,
        json.dumps(sorted(names)),
    )


def _answer(
    command: list[str], seconds: float, environ: Mapping[str, str], text: str = ""
) -> dict[str, Any]:
    """The JSON object on the last line that ``command`` prints, else ``{"error": why}``."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=dict(environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {seconds:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    ending = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
    last = (done.stderr.strip().splitlines() or ["no output on stderr"])[-1]
    return {"error": f"{ending}: {last}"}


def probe() -> EngineFacts:
    library, error = None, ""
    try:
        library = Path(bindings.library_path())
    except LockstepError as failure:
        error = str(failure)
    jaxlib, wanted = _jax_compat.jaxlib_library(), set()
    with contextlib.suppress(OSError, ValueError):  # then no name is known: `check_abi` says so
        wanted = _jax_compat.names_wanted(jaxlib) if jaxlib else set()
    return EngineFacts(
        library=library,
        library_error=error,
        compiler=shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"),
        jaxlib=jaxlib,
        wanted=len(wanted),
        lookup=_look_up_in_child(library, wanted) if library and library.is_file() else {},
    )


@functools.cache
def probe_smoke() -> dict[str, Any]:
    """Runs `lockstep.doctor.smoke`: its answer, or ``{"error": why}``."""
    own = ("LOCKSTEP_", "JAX_", "XLA_", "MPITRAMPOLINE_")
    environ = {
        name: value
        for name, value in os.environ.items()
        if name == "LOCKSTEP_ENGINE" or not name.startswith(own)
    }
    environ["JAX_NUM_CPU_DEVICES"] = "2"
    environ["JAX_PLATFORMS"] = "cpu"
    return _answer([sys.executable, "-m", "lockstep.doctor.smoke"], SMOKE_SECONDS, environ)


def check_library(facts: EngineFacts) -> Finding:
    """The library is there and loads."""
    name = "engine"
    reinstall = (
        "pip install --force-reinstall --no-deps --no-cache-dir WHEEL, the wheel or source tree "
        "that Lockstep was installed from"
    )
    if facts.library is None or not facts.lookup:
        compiler = "" if facts.compiler else "sudo apt-get install g++ && "
        where = facts.library_error or f"{facts.library} does not exist"
        return problem(name, where, f"{compiler}{reinstall}")
    if "error" in facts.lookup:
        return problem(name, f"does not load: {facts.lookup['error']}", reinstall)
    return ok(name, str(facts.library))


def check_abi(facts: EngineFacts) -> Finding:
    """Every name that jaxlib asks for, and the ABI version that it checks."""
    name = "engine and jaxlib"
    if facts.jaxlib is None:
        return warning(
            name,
            "jaxlib has no libjax_common.so, so the names that it needs of the engine are unknown",
            f"pip install --upgrade jax jaxlib; {NEWER_LOCKSTEP}",
        )
    if not facts.wanted:
        return problem(
            name,
            "this jaxlib was built without MPI collectives, through which the engine plugs in, or "
            "its library cannot be read",
            "pip install --force-reinstall jaxlib",
        )
    if "missing" not in facts.lookup:
        return problem(name, "cannot be compared: the engine did not load", "see the line above")
    missing, abi = facts.lookup["missing"], tuple(facts.lookup["abi"])
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        return problem(
            name,
            f"jaxlib needs {len(missing)} names that the engine lacks: {shown}",
            NEWER_LOCKSTEP,
        )
    version = ".".join(str(part) for part in abi)
    if abi[0] != ABI[0] or abi < ABI:
        expected = ".".join(str(part) for part in ABI)
        return problem(
            name,
            f"the engine has MPI ABI {version}, jaxlib needs {expected}",
            NEWER_LOCKSTEP,
        )
    return ok(name, f"all {facts.wanted} names that jaxlib needs are there, MPI ABI {version}")


def check_smoke(answer: Mapping[str, Any]) -> Finding:
    """A sum over two devices came out right, and went through the engine."""
    name = "a collective"
    if "error" in answer:
        return problem(
            name,
            f"a psum over 2 devices failed: {answer['error']}",
            "fix the lines above first; then: python -m lockstep.doctor.smoke",
        )
    if answer["result"] != answer["expected"]:
        return problem(
            name,
            f"a psum over 2 devices gave {answer['result']} and not {answer['expected']}",
            NEWER_LOCKSTEP,
        )
    if not answer["engine_calls"]:
        return problem(
            name,
            "a psum over 2 devices came out right, but did not go through the engine",
            "check for settings that choose other collectives: env | grep -i collectives",
        )
    return ok(name, f"psum over 2 devices through the engine, {answer['seconds']:.1f} s with start")


def findings() -> list[Finding]:
    facts = probe()
    return [check_library(facts), check_abi(facts), check_smoke(probe_smoke())]


if __name__ == "__main__":
    print(json.dumps(look_up(sys.argv[1], json.load(sys.stdin))))
