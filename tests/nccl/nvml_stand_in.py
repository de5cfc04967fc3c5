"""Stands in for NVML: a module ``pynvml`` with the functions of nvidia-ml-py that Lockstep calls.

It writes a file when it is imported, so that a test sees whether that happened.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from nccl.nvml_stand_in import *
"""

_script: dict[str, Any] = json.loads(os.environ.get("NVML_STAND_IN", "{}"))
if "touched" in _script:
    Path(_script["touched"]).touch()

NVML_P2P_CAPS_INDEX_READ = (0,)  # as nvidia-ml-py 13.615 has it


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    if error := _script.get("error"):
        raise NVMLError(error)
    if _script.get("hangs"):
        import time

        time.sleep(100)


def nvmlSystemGetDriverVersion() -> str:
    return _script["driver"]


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return _script["cuda"]


def nvmlDeviceGetCount() -> int:
    return len(_script["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def _gpu(handle: int) -> dict[str, Any]:
    return _script["gpus"][handle]


def nvmlDeviceGetName(handle: int) -> str:
    return _gpu(handle)["name"]


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle}e538d51"


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(total=141 << 30, used=_gpu(handle).get("used", 0))


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    if _gpu(handle).get("mig"):
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=_gpu(handle).get("busy", 0))


def nvmlDeviceGetComputeMode(handle: int) -> int:
    return _gpu(handle).get("mode", 0)


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
    return tuple(_gpu(handle).get("capability", (9, 0)))


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in _gpu(handle).get("pids", [])]


def nvmlDeviceGetP2PStatus(one: int, other: int, index: int) -> int:
    if not isinstance(index, int):
        raise TypeError("argument 3: TypeError: Don't know how to convert parameter 3")
    return 3 if [one, other] in _script.get("apart", []) else 0
