"""NVIDIA's GPUs: driver, CUDA and JAX's plug-in, NCCL, use, peer access, /dev/shm, network."""

from __future__ import annotations

from lockstep._finding import Finding
from lockstep.nccl import gpus

SECONDS = 30.0


def findings() -> list[Finding]:
    """Empty where there are none: then nothing of it is imported."""
    if not gpus.has_nvidia():
        return []
    # Late imports: only hosts with GPUs need them.
    from lockstep.nccl import devices, gpu_checks

    return gpu_checks.findings(devices.ask(SECONDS))
