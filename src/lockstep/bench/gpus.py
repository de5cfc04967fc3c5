"""``lockstep bench --platform cuda``: the collectives over NCCL."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from lockstep.bench.job import ON_GPUS
from lockstep.nccl import devices, gpus

ENVIRON = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)
"""The jobs of all implementations exist at the same time, and JAX would take most of the memory."""
_SECONDS = 30.0


def add_options(add: Callable[..., Any]) -> None:
    """Adds the options that are for GPUs; ``add`` is the method of a parser."""
    add(
        "--platform",
        choices=("cuda", "rocm"),
        help="measure NCCL (or AMD's RCCL) on GPUs: one process for each, unless -n and -d say "
        "other; default: CPUs",
    )
    add(
        "--oversubscribe",
        action="store_true",
        help="with --platform: let processes share GPUs, for tests (they compute in turn)",
    )


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


def processes(args: argparse.Namespace) -> int:
    """Two on CPUs; else so many that all GPUs of this machine are used."""
    if args.platform is None:
        return 2
    return max(1, max(2, gpus.shown(args.platform, os.environ)) // args.devices)


def free_memory() -> int:
    """Bytes that are free on the GPUs of this machine; without a limit where it is not known."""
    found = [gpu.memory - gpu.used for gpu in devices.ask(_SECONDS).gpus if gpu.memory]
    return sum(found) or 1 << 62
