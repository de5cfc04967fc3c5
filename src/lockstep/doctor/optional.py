"""Optional software: MPI, a cluster's launcher, GPUs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep._errors import LaunchError
from lockstep._finding import Finding, ok, warning
from lockstep._words import counted
from lockstep.bootstrap import cluster_env, mpi_backend
from lockstep.doctor.software import release
from lockstep.system.subprocess_output import said_by

_CLUSTER_FIX = (
    "for lockstep worker, set the other variables on all processes; lockstep run needs none of them"
)


@dataclasses.dataclass(frozen=True)
class OptionalFacts:
    mpi_libraries: tuple[str, ...]
    mpiexec: str | None
    mpiexec_says: str
    gpus: tuple[str, ...]
    plugins: Mapping[str, str]
    """Installed JAX plug-ins for accelerators and their versions."""
    jaxlib: str | None


def _gpus() -> tuple[str, ...]:
    smi = shutil.which("nvidia-smi")
    named = re.findall(r"^GPU \d+: ([^(\n]+)", said_by(smi, "-L"), re.MULTILINE) if smi else []
    if named:
        return tuple(name.strip() for name in named)
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    return tuple(str(node) for node in [*nodes, *Path("/dev").glob("kfd")])


def accelerator_plugins(installed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of ``(name, version)`` that let JAX use GPUs or TPUs."""
    pattern = re.compile(r"jax-(?:cuda\d+|rocm\d*)-plugin|libtpu")
    return {name: version for name, version in installed if pattern.fullmatch(name)}


def probe() -> OptionalFacts:
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), f"{sys.prefix}/bin"])
    mpiexec = shutil.which("mpiexec", path=folders) or shutil.which("mpirun", path=folders)
    installed = [
        (d.metadata["Name"].lower().replace("_", "-"), d.version)
        for d in importlib.metadata.distributions()
        if d.metadata["Name"]
    ]
    return OptionalFacts(
        mpi_libraries=tuple(dict.fromkeys(mpi_backend.libraries(os.environ))),
        mpiexec=mpiexec,
        mpiexec_says=said_by(mpiexec, "--version") if mpiexec else "",
        gpus=_gpus(),
        plugins=accelerator_plugins(installed),
        jaxlib=dict(installed).get("jaxlib"),
    )


def mpiexec_kind(says: str) -> str:
    """Name and version of the launcher that prints ``says`` for ``--version``."""
    for name, pattern in (
        ("Open MPI", r"\(Open(?: MPI|RTE)\)\s*(\S+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version\s+(\S+(?: Update \d+)?)"),
        ("MPICH's Hydra", r"HYDRA build details:\s*Version:\s*(\S+)"),
        ("Slurm", r"\bslurm\s+(\S+)"),
    ):
        match = re.search(pattern, says, re.DOTALL)
        if match:
            return f"{name} {match[1]}"
    return says.strip().splitlines()[0] if says.strip() else "says no version"


def check_mpi(facts: OptionalFacts) -> Finding:
    parts = list(facts.mpi_libraries)
    if facts.mpiexec:
        parts.append(f"{facts.mpiexec} ({mpiexec_kind(facts.mpiexec_says)})")
    usable = mpi_backend.with_standard_abi(facts.mpi_libraries)
    use = (
        f"--collectives mpi uses {usable}"
        if usable
        else f"--collectives mpi needs: {mpi_backend.FIX}"
    )
    return ok("MPI", f"{', '.join(parts) or 'none'}; {use}")


def check_trampoline(environ: Mapping[str, str], exists: bool) -> Finding:
    """``exists``: whether the file that MPITRAMPOLINE_LIB names is there."""
    path = environ.get("MPITRAMPOLINE_LIB")
    if not path:
        return ok("MPITRAMPOLINE_LIB", "not set (only --collectives mpi needs it)")
    if exists:
        return ok("MPITRAMPOLINE_LIB", f"{path}: used by --collectives mpi")
    return warning(
        "MPITRAMPOLINE_LIB",
        f"{path} does not exist: --collectives mpi, and any program that imports jax without "
        "lockstep, ends at once",
        "unset MPITRAMPOLINE_LIB, or set it to the libmpiwrapper.so of an installed MPIwrapper",
    )


def check_cluster(environ: Mapping[str, str]) -> Finding:
    """Whether a cluster's launcher started this very process."""
    present = cluster_env.launchers(environ)
    try:
        place = cluster_env.detect(environ)
    except LaunchError as error:
        where = f"{', '.join(present)}: " if present else ""
        return warning("cluster", f"{where}{error}", _CLUSTER_FIX)
    if place is not None:
        found = ", ".join(present) or place.found_by
        choice = cluster_env.explain_choice(environ)
        said = f"lockstep worker is process {place.rank} of {place.size}{choice}"
        return ok("cluster", f"{found}: {said}")
    if lacking := cluster_env.missing(environ):
        return warning("cluster", lacking, _CLUSTER_FIX)
    if not present:
        return ok("cluster", "not started by one")
    return ok("cluster", f"{', '.join(present)}, without a rank of this process: use srun")


def check_gpus(facts: OptionalFacts) -> Finding:
    names = ", ".join(
        f"{facts.gpus.count(name)} x {name}" if facts.gpus.count(name) > 1 else name
        for name in dict.fromkeys(facts.gpus)
    )
    plugins = ", ".join(f"{name} {version}" for name, version in facts.plugins.items())
    if facts.gpus and not facts.plugins:
        amd = any("kfd" in gpu for gpu in facts.gpus)
        return warning(
            "GPUs",
            f"{names}, but JAX has no plug-in for {'it' if len(facts.gpus) == 1 else 'them'}",
            f"pip install --upgrade 'jax[{'rocm' if amd else 'cuda13'}]'",
        )
    for name, version in facts.plugins.items():
        if name != "libtpu" and release(version) != release(facts.jaxlib or version):
            return warning(
                "GPUs",
                f"{names or 'none'}; {name} is {version}, jaxlib {facts.jaxlib}",
                f"pip install {name}=={facts.jaxlib}",
            )
    if not facts.gpus:
        return ok("GPUs", f"none{f' ({plugins} installed)' if plugins else ''}")
    return ok("GPUs", f"{names} ({counted(len(facts.plugins), 'plug-in')}: {plugins})")


def findings() -> list[Finding]:
    facts, environ = probe(), os.environ
    trampoline = environ.get("MPITRAMPOLINE_LIB", "")
    return [
        check_mpi(facts),
        check_trampoline(environ, Path(trampoline).is_file()),
        check_cluster(environ),
        check_gpus(facts),
    ]
