"""Gives each process of a host its own GPUs, by the variables of JAX and NCCL. Pure, but for
`count`.

JAX uses all GPUs that CUDA shows in each process, so two processes would open the same ones.
``CUDA_VISIBLE_DEVICES`` (indices, UUIDs, MIG names) stays as the user has set it: JAX's own
``local_device_ids`` chooses among those GPUs by their index.
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
from lockstep.system import subprocess_output

_CHOICE = "JAX_LOCAL_DEVICE_IDS"
"""What `jax.distributed.initialize` takes for ``local_device_ids`` where that is not given."""
_SHOWN = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""The variables by which a user or a batch system hides GPUs; the first that is set counts."""
_PREALLOCATED = 0.75
"""The part of a GPU's memory that JAX takes at its start, by default."""
_SMI_SECONDS = 10.0


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
    return chosen if is_told or _has_plugin() else None


def shown(platform: str | None, environ: Mapping[str, str]) -> int:
    """How many GPUs of this host JAX will see; 0: it is to use none, or has no plug-in for them."""
    chosen = used(platform, environ)
    return count(chosen, environ) if chosen else 0


def _has_plugin() -> bool:
    return any(find_spec(f"jax_{name}_plugin") for name in ("cuda12", "cuda13", "rocm7"))


def has_nvidia() -> bool:
    """Whether NVIDIA's driver is loaded, or its tool is there: reads one name."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def count(vendor: str, environ: Mapping[str, str]) -> int:
    """How many GPUs of this host a program sees; 0 without any."""
    for name in _SHOWN[vendor]:
        if name in environ:
            named = [part for part in environ[name].split(",") if part.strip()]
            return 0 if named[:1] == ["-1"] else len(named)
    if vendor == "rocm":
        nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        return sum(node.read_text().strip() != "0" for node in nodes)
    if found := list(Path("/proc/driver/nvidia/gpus").glob("*")):
        return len(found)
    return len(re.findall(r"^GPU \d+:", _said_by_smi(), re.MULTILINE))


def _said_by_smi() -> str:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    try:
        return subprocess_output.run([smi, "-L"], _SMI_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def are_own(processes: int, each: int | None, there: int, environ: Mapping[str, str]) -> bool:
    """Whether a batch system shows each of a host's ``processes`` only GPUs of its own.

    Slurm does so by ``--gpus-per-task``, unless ``--gpu-bind=none``; other launchers by variables
    that each process gets with another value.
    """
    if binding := environ.get("SLURM_GPU_BIND", "").removeprefix("verbose,"):
        return binding != "none"
    if "SLURM_GPUS_PER_TASK" in environ or "gres/gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
        return True
    is_hidden = any(name in environ for names in _SHOWN.values() for name in names)
    return is_hidden and there == (each or 1) < processes * (each or 1)


def of_task(
    local: int, processes: int, each: int | None, there: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """`variables` for a process that a cluster's launcher has started.

    JAX's own detection takes the GPU with the number ``local``, which is none of a process that is
    shown only its own. Raises `ConfigError` where the host has too few.
    """
    if not there or processes == 1 or _CHOICE in environ:
        return variables(0, 1, each, there, environ)
    if are_own(processes, each, there, environ):
        return variables(0, 1, each, there, environ)
    if processes * (each or 1) > there:
        raise ConfigError(
            f"{processes} processes of this host with {counted(each or 1, 'GPU')} each need "
            f"{processes * (each or 1)} GPUs, and it shows {there}. Start fewer on a host, or let "
            "the batch system give each its own (srun --gpus-per-task=1), or --platform cpu."
        )
    return variables(local, processes, each, there, environ)


def check(processes: int, each: int | None, there: int) -> None:
    """Raises `ConfigError` where a host has fewer GPUs than its processes need."""
    wanted = each or 1
    if there and processes > 1 and processes * wanted > there:
        raise ConfigError(
            f"{processes} processes with {counted(wanted, 'GPU')} each need {processes * wanted} "
            f"GPUs, and this host shows {there}. Start {there // wanted or 1}, or add "
            "--oversubscribe to let processes share a GPU (for tests: they compute in turn), or "
            "--platform cpu to leave the GPUs alone."
        )


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
    if not there or (processes == 1 and each is None) or _CHOICE in environ:
        return {}
    wanted = min(each or 1, there)
    first = local * wanted
    own = sorted({(first + k) % there for k in range(wanted)})
    found = {_CHOICE: ",".join(map(str, own))}
    if processes * wanted > there:
        layers = -(-processes * wanted // there)
        found["NCCL_HOSTID"] = f"{os.uname().nodename}-lockstep-{first // there}"
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_PREALLOCATED / layers:.3f}"
    return {name: value for name, value in found.items() if name not in environ}
