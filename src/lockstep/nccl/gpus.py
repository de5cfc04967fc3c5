"""Gives each process of a host its own GPUs, by the variables of JAX and NCCL. Pure, but for
`count`.

JAX uses all GPUs that CUDA shows in each process, so two processes would open the same ones.
``CUDA_VISIBLE_DEVICES`` (indices, UUIDs) stays as the user has set it: JAX's own
``local_device_ids`` chooses among those GPUs by their index. CUDA shows a process one MIG device,
so of several that are named each process gets the name of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from lockstep._errors import ConfigError
from lockstep._words import counted
from lockstep.nccl import visible
from lockstep.system import subprocess_output

_CHOICE = "JAX_LOCAL_DEVICE_IDS"
"""What `jax.distributed.initialize` takes for ``local_device_ids`` where that is not given."""
_PLUGINS = ("cuda12", "cuda13", "rocm60", "rocm7", "rocm10")
"""JAX's plug-ins for GPUs: `jax_cuda13_plugin`."""
_PREALLOCATED = 0.75
"""The part of a GPU's memory that JAX takes at its start, by default."""
_SMI_SECONDS = 10.0
_ROOT = Path("/")


def vendor(platform: str | None, environ: Mapping[str, str]) -> str | None:
    """``cuda`` or ``rocm``: whose GPUs JAX is to use; None: none, or it is not known."""
    asked = (platform or environ.get("JAX_PLATFORMS") or "").split(",")
    if any(name in ("cuda", "rocm") for name in asked):
        return next(name for name in asked if name in ("cuda", "rocm"))
    if "gpu" in asked or asked == [""]:
        return "rocm" if Path("/dev/kfd").exists() else "cuda"
    return None


def used(platform: str | None, environ: Mapping[str, str]) -> str | None:
    """`vendor`, if JAX has a plug-in for its GPUs, or is told to use them."""
    chosen = vendor(platform, environ)
    is_told = platform is not None or environ.get("JAX_PLATFORMS")
    can_be = is_told or any(find_spec(f"jax_{name}_plugin") for name in _PLUGINS)
    return chosen if can_be else None


def shown(platform: str | None, environ: Mapping[str, str]) -> int:
    """How many GPUs of this host JAX will see; 0: it is to use none, or has no plug-in for them."""
    chosen = used(platform, environ)
    return count(chosen, environ) if chosen else 0


def has_nvidia() -> bool:
    """Whether NVIDIA's driver is loaded, or its tool is there: reads one name."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def count(vendor: str, environ: Mapping[str, str]) -> int:
    """How many GPUs of this host a program sees; 0 without any.

    Raises `ConfigError` where the driver does not answer.
    """
    there = _of_rocm() if vendor == "rocm" else _of_cuda()
    named = visible.shown(vendor, environ, there)
    if named is not None:
        return len(named)
    return there or (0 if vendor == "rocm" else _by_smi())


def _of_rocm() -> int:
    nodes = _ROOT.glob("sys/class/kfd/kfd/topology/nodes/*/gpu_id")
    return sum(node.read_text().strip() != "0" for node in nodes)


def _of_cuda() -> int:
    """What the driver shows, without asking it; 0: not known."""
    found = len(list(_ROOT.glob("proc/driver/nvidia/gpus/*")))
    # A container may see the names of all GPUs, and the devices of its own alone.
    devices = sum(each.name[6:].isdigit() for each in _ROOT.glob("dev/nvidia*"))
    return min(found, devices) if devices else found


def _by_smi() -> int:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return 0
    try:
        said = subprocess_output.run([smi, "-L"], _SMI_SECONDS).stdout
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"the GPUs of this host cannot be counted: nvidia-smi -L has not answered within "
            f"{_SMI_SECONDS:g} s. Name those to use by CUDA_VISIBLE_DEVICES=0,1, or add --platform "
            "cpu to leave them alone."
        ) from None
    except OSError:
        return 0
    return len(re.findall(r"^GPU \d+:", said, re.MULTILINE))


def are_own(processes: int, each: int | None, there: int, environ: Mapping[str, str]) -> bool:
    """Whether a batch system shows each of a host's ``processes`` only GPUs of its own.

    Slurm does so by ``--gpus-per-task``, unless ``--gpu-bind=none``; other launchers by variables
    that each process gets with another value.
    """
    if processes == 1:
        return True
    if binding := environ.get("SLURM_GPU_BIND", "").removeprefix("verbose,"):
        return binding != "none"
    if "SLURM_GPUS_PER_TASK" in environ or "gres/gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
        return True
    return bool(visible.settings(environ)) and there == (each or 1) < processes * (each or 1)


def of_task(
    local: int, processes: int, each: int | None, there: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """`variables` for a process that a cluster's launcher has started.

    JAX's own detection takes the GPU with the number ``local``, which is none of a process that is
    shown only its own. Raises `ConfigError` where the host has too few.
    """
    if not there or _chooses(environ) or are_own(processes, each, there, environ):
        local, processes = 0, 1
    fix = (
        "Start fewer on a host, or let the batch system give each its own (srun "
        "--gpus-per-task=1), or --platform cpu."
    )
    check(processes, each, there, environ, fix)
    return variables(local, processes, each, there, environ)


def check(
    processes: int, each: int | None, there: int, environ: Mapping[str, str], fix: str = ""
) -> None:
    """Raises `ConfigError` where a host has fewer GPUs than its processes need.

    ``fix``: what to do about that, where it is not started by ``lockstep run``.
    """
    wanted, is_chosen = each or 1, _chooses(environ)
    if not there or is_chosen or (processes == 1 and each is None):
        return
    check_each(each, there, environ)
    if processes * wanted > there:
        fix = fix or (
            f"Start {there // wanted}, or add --oversubscribe to let processes share a GPU (for "
            "tests: they compute in turn), or --platform cpu to leave the GPUs alone."
        )
        raise ConfigError(
            f"{counted(processes, 'process')} with {counted(wanted, 'GPU')} each need "
            f"{processes * wanted} GPUs, and this host shows {_there(there, environ)}. {fix}"
        )


def check_each(each: int | None, there: int, environ: Mapping[str, str]) -> None:
    """Raises `ConfigError` where not even one process gets so many GPUs."""
    if not there or not each or _chooses(environ):
        return
    if each > there:
        raise ConfigError(
            f"-d {each} asks for {each} GPUs for each process, and this host shows "
            f"{_there(there, environ)}."
        )
    if each > 1 and visible.migs(environ):
        raise ConfigError(
            f"-d {each} asks for {each} GPUs for each process, and CUDA shows a process one MIG "
            f"device ({visible.settings(environ)}). Leave out -d, or name whole GPUs."
        )


def _there(there: int, environ: Mapping[str, str]) -> str:
    hidden = visible.settings(environ)
    return f"{there} ({hidden})" if hidden else str(there)


def _chooses(environ: Mapping[str, str]) -> bool:
    """Whether the user has chosen the GPUs of each process."""
    return _CHOICE in environ


def variables(
    local: int,
    processes: int,
    each: int | None,
    there: int,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """What to set for the ``local``-th of a host's ``processes``; its own GPUs, ``each`` of them.

    With fewer GPUs than that, processes share them, which NCCL permits between hosts only: so the
    processes of one GPU get different names of a host. Nothing is set that the user has set, nor
    for a single process, which uses all GPUs.
    """
    if not there or (processes == 1 and each is None) or _chooses(environ):
        return {}
    wanted = min(each or 1, there)
    # Processes of one layer share no GPU.
    layer, place = divmod(local, there // wanted)
    layers = -(-processes // (there // wanted))
    own = range(place * wanted, (place + 1) * wanted)
    found = {_CHOICE: ",".join(map(str, own))}
    host = f"{os.uname().nodename}-lockstep"
    if layers > 1:
        found["NCCL_HOSTID"] = f"{host}-{layer}"
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_PREALLOCATED / layers:.3f}"
    if names := visible.migs(environ):
        # CUDA shows a process the first of them only, and NCCL takes two of one GPU for the same.
        found |= {_CHOICE: "0", "NCCL_HOSTID": f"{host}-{local}"}
        return _unset(found, environ) | {visible.OF_CUDA: names[place]}
    return _unset(found, environ)


def _unset(found: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name not in environ}
