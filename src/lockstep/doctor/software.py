"""Python, jax, jaxlib and the settings in the environment."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping

from lockstep._config import Config
from lockstep._errors import ConfigError
from lockstep._finding import PROBLEM, Finding, ok, problem, warning
from lockstep._jax_compat import (
    KNOWN_PROBLEMS,
    NEWEST_TESTED_JAX,
    OLDEST_JAX,
    dotted,
    is_untested,
    pin,
    release,
)
from lockstep.doctor import engine

OLDEST_PYTHON: tuple[int, ...] = (3, 11)
MACHINES = ("x86_64", "aarch64")


@dataclasses.dataclass(frozen=True)
class SoftwareFacts:
    """Versions as installed; None: not installed."""

    python: tuple[int, int, int]
    executable: str
    system: str
    machine: str
    jax: str | None
    jaxlib: str | None


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def probe() -> SoftwareFacts:
    """Reads versions without importing jax."""
    return SoftwareFacts(
        python=sys.version_info[:3],
        executable=sys.executable,
        system=platform.system(),
        machine=platform.machine(),
        jax=_installed("jax"),
        jaxlib=_installed("jaxlib"),
    )


def check_python(facts: SoftwareFacts) -> Finding:
    found = f"{dotted(facts.python)} ({facts.executable}), {facts.system} {facts.machine}"
    if facts.python < OLDEST_PYTHON:
        return problem(
            "Python",
            f"{found}: Lockstep needs {dotted(OLDEST_PYTHON)} or later",
            "make a virtual environment with a newer Python and install lockstep-jax there",
        )
    if facts.system != "Linux" or facts.machine not in MACHINES:
        return problem(
            "Python",
            f"{found}: the engine runs on Linux, {' and '.join(MACHINES)}",
            "use a Linux machine, container or virtual machine",
        )
    return ok("Python", found)


def check_jax(facts: SoftwareFacts, collective: Callable[[], Finding]) -> Finding:
    """Installed, no older than supported, no newer than tested.

    ``collective`` tries one; a failure with a jax that is newer than tested is that version's.
    """
    if facts.jax is None:
        return problem("jax", "not installed", f"pip install 'jax>={dotted(OLDEST_JAX)}'")
    numbers = release(facts.jax)
    if numbers < OLDEST_JAX:
        return problem(
            "jax",
            f"{facts.jax}: {dotted(OLDEST_JAX)} is the oldest supported version",
            "pip install --upgrade jax jaxlib",
        )
    if is_untested(facts.jax):
        found = f"{facts.jax}: newer than {dotted(NEWEST_TESTED_JAX)}, the newest tested version"
        tried = collective()
        if tried.status == PROBLEM:
            return problem("jax", f"{found}, and {tried.found}", pin())
        return warning(
            "jax",
            found,
            f"if something fails: {engine.NEWER_LOCKSTEP}, or {pin()}",
        )
    return ok("jax", facts.jax)


def check_jaxlib(facts: SoftwareFacts) -> Finding:
    """The same version as jax: jax accepts an older jaxlib, but not every pair is tested."""
    if facts.jaxlib is None:
        return problem("jaxlib", "not installed", "pip install jaxlib")
    if facts.jax is None or release(facts.jaxlib) == release(facts.jax):
        if facts.jaxlib in KNOWN_PROBLEMS:
            what, fix = KNOWN_PROBLEMS[facts.jaxlib]
            return warning("jaxlib", f"{facts.jaxlib}: {what}", fix)
        return ok("jaxlib", facts.jaxlib)
    found = f"{facts.jaxlib}, but jax is {facts.jax}"
    fix = f"pip install jaxlib=={facts.jax}"
    if release(facts.jaxlib) > release(facts.jax):
        return problem("jaxlib", f"{found}: jax refuses a newer jaxlib", fix)
    return warning("jaxlib", found, fix)


def check_settings(environ: Mapping[str, str]) -> Finding:
    """``LOCKSTEP_*`` variables that a user set."""
    try:
        config = Config.from_environ(environ)
    except ConfigError as error:
        name = re.match(r"LOCKSTEP_\w*", str(error))
        return problem("LOCKSTEP_*", str(error), f"unset {name[0] if name else 'it'}")
    names = sorted(config.to_environ())
    return ok("LOCKSTEP_*", ", ".join(names) if names else "none set")


def check_jax_settings(environ: Mapping[str, str]) -> Finding:
    """Settings of JAX and XLA that ``lockstep run`` also makes, or that work against it."""
    set_by = {
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "lockstep run --collectives",
        "JAX_NUM_CPU_DEVICES": "lockstep run -d",
        "JAX_PLATFORMS": "lockstep run --platform",
    }
    present = [name for name in set_by if environ.get(name)]
    found = [f"{name}={environ[name]}" for name in present]
    fixes = [f"unset {name}; {set_by[name]} sets it" for name in present]
    if "xla_force_host_platform_device_count" in environ.get("XLA_FLAGS", ""):
        found.append("XLA_FLAGS with xla_force_host_platform_device_count")
        fixes.append("remove it from XLA_FLAGS; lockstep run -d sets the number of CPU devices")
    if not found:
        return ok("JAX settings", "none that interfere")
    return warning("JAX settings", f"{', '.join(found)}: set for every program", "; ".join(fixes))


def findings() -> list[Finding]:
    facts, environ = probe(), os.environ
    jax = check_jax(facts, lambda: engine.check_smoke(engine.probe_smoke()))
    rest = [
        check_python(facts),
        check_jaxlib(facts),
        check_settings(environ),
        check_jax_settings(environ),
    ]
    return [jax, *rest] if jax.status == PROBLEM else [rest[0], jax, *rest[1:]]
