"""``lockstep bench --platform cuda``: the collectives over NCCL."""

from __future__ import annotations

import argparse
import os

from lockstep.bench.job import ON_GPUS
from lockstep.nccl import devices, gpus

PLATFORMS = ("cuda", "rocm")
ENVIRON = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)
"""The jobs of all implementations exist at the same time, and JAX would take most of the memory."""
_SECONDS = 30.0


def unusable(args: argparse.Namespace) -> str | None:
    """Why the GPUs cannot be measured as the user wants; None: they can."""
    if args.platform is None:
        return "--oversubscribe is for --platform cuda" if args.oversubscribe else None
    if others := [name for name in args.collectives or () if name not in ON_GPUS]:
        return (
            f"{others[0]} is not for GPUs, where NCCL moves the data; known: {', '.join(ON_GPUS)}"
        )
    if args.calibrate:
        return "--calibrate is for CPUs: lockstep inspect predicts times of the engine"
    if args.hosts or args.hostfile:
        return None  # the check before the start looks there
    there = gpus.shown(args.platform, os.environ)
    wanted = args.processes * args.devices
    if not there:
        return f"--platform {args.platform}: this machine shows no GPU"
    if wanted > there and not args.oversubscribe:
        return (
            f"{args.processes} processes with {args.devices} each need {wanted} GPUs, and this "
            f"machine shows {there}; --oversubscribe lets them share (they compute in turn)"
        )
    return None


def processes(platform: str) -> int:
    """One for each GPU of this machine, and at least two."""
    return max(2, gpus.shown(platform, os.environ))


def free_memory() -> int:
    """Bytes that are free on the GPUs of this machine; without a limit where it is not known."""
    found = [gpu.memory - gpu.used for gpu in devices.ask(_SECONDS).gpus if gpu.memory]
    return sum(found) or 1 << 62
