"""What the NVIDIA GPUs of this host are, and what is installed for them.

By NVML, where nvidia-ml-py is installed, else by ``nvidia-smi``. It is only imported on a host that
has such GPUs (`lockstep.nccl.gpus.has_nvidia`), and read in a process of its own: a driver in
trouble answers late or never.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.nccl import installed, visible
from lockstep.system import machine, subprocess_output
from lockstep.system.interfaces import interfaces
from lockstep.system.subprocess_output import said_by

_QUERY = (
    *("name", "memory.total", "memory.used", "utilization.gpu", "compute_mode", "compute_cap"),
    "uuid",
)
_MIB = 1 << 20
_P2P_READ, _P2P_OK = 0, 0
"""Numbers of NVML: nvidia-ml-py defines the first one as a tuple, which it then refuses."""
_VARIABLES = ("NCCL_", visible.OF_CUDA)
_MODES = {2: "Prohibited", 3: "Exclusive_Process"}


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    memory: int = 0
    """Bytes; 0: not known."""
    used: int = 0
    busy: int = 0
    """Percent of the time."""
    mode: str = "Default"
    capability: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    """The processes of this container that compute on it."""
    uuid: str = ""


@dataclasses.dataclass(frozen=True)
class GpuFacts:
    """Empty where the system does not say."""

    found_by: str = ""
    problem: str = ""
    is_late: bool = False
    """Whether the problem is that the driver has not answered in time."""
    driver: str = ""
    cuda: tuple[int, ...] = ()
    """The newest CUDA that the driver supports."""
    gpus: tuple[Gpu, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    """Pairs of GPUs that do not reach each other's memory."""
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """JAX's plug-ins and NCCL, as installed."""
    other_nccl: str = ""
    """A NCCL in LD_LIBRARY_PATH, which comes before the installed one."""
    machine: str = ""
    shared_memory: int = 0
    """The size of /dev/shm."""
    interfaces: tuple[tuple[str, str], ...] = ()
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The variables of NCCL, and those that hide GPUs."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> GpuFacts:
        """Raises TypeError, ValueError or LookupError for what is no `dataclasses.asdict` of it."""
        gpus = tuple(
            Gpu(**{**one, **{k: tuple(one[k]) for k in ("capability", "processes")}})
            for one in found["gpus"]
        )
        lists = {name: tuple(found[name]) for name in ("cuda", "apart", "interfaces")}
        pairs = {name: tuple(map(tuple, lists[name])) for name in ("apart", "interfaces")}
        return cls(**{**found, **lists, **pairs, "gpus": gpus})


def ask(seconds: float) -> GpuFacts:
    """What this host has, read by another process in so many seconds. Raises nothing."""
    command = [sys.executable, "-P", "-m", "lockstep.nccl.devices"]
    try:
        return GpuFacts.from_json(json.loads(subprocess_output.run(command, seconds).stdout))
    except subprocess.TimeoutExpired:
        late = f"NVIDIA's driver has not answered within {seconds:g} s"
        return GpuFacts(problem=late, is_late=True)
    except (OSError, ValueError, TypeError, LookupError) as error:
        return GpuFacts(problem=f"the GPUs cannot be read: {error}")


def probe(environ: Mapping[str, str] = os.environ) -> GpuFacts:
    """What this host has. Raises nothing: what cannot be read is empty."""
    facts = _by_nvml() or _by_smi()
    return dataclasses.replace(
        facts,
        packages=_packages(),
        other_nccl=installed.other(environ),
        machine=platform.machine(),
        shared_memory=(machine.dev_shm() or (0, 0))[0],
        interfaces=tuple((each.name, each.address) for each in interfaces()),
        environ={name: environ[name] for name in environ if name.startswith(_VARIABLES)},
    )


def _by_nvml() -> GpuFacts | None:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return _read(nvml)
    except ImportError:
        return None
    except Exception as error:  # NVML's own, or those of another version of the module
        return GpuFacts("NVML", problem=f"NVML: {error}")


def _read(nvml: Any) -> GpuFacts:
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    return GpuFacts(
        "NVML",
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda=(cuda // 1000, cuda % 1000 // 10),
        gpus=tuple(_read_gpu(nvml, each) for each in handles),
        apart=tuple(
            (a, b)
            for a in range(len(handles))
            for b in range(a + 1, len(handles))
            if _asked(nvml, "P2PStatus", handles[a], handles[b], _P2P_READ) not in (None, _P2P_OK)
        ),
    )


def _read_gpu(nvml: Any, handle: Any) -> Gpu:
    memory = _asked(nvml, "MemoryInfo", handle)
    busy = _asked(nvml, "UtilizationRates", handle)
    mode = _asked(nvml, "ComputeMode", handle)
    return Gpu(
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total) if memory else 0,
        int(memory.used) if memory else 0,
        int(busy.gpu) if busy else 0,
        _MODES.get(mode, "Default"),
        tuple(_asked(nvml, "CudaComputeCapability", handle) or ()),
        tuple(int(one.pid) for one in _asked(nvml, "ComputeRunningProcesses", handle) or ()),
        _text(_asked(nvml, "UUID", handle) or ""),
    )


def _asked(nvml: Any, what: str, *handles: Any) -> Any:
    """None for what this GPU or driver does not support: MIG has no utilization, say."""
    try:
        return getattr(nvml, f"nvmlDeviceGet{what}")(*handles)
    except Exception:
        return None


def _text(found: str | bytes) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _by_smi() -> GpuFacts:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return GpuFacts(problem="there is no nvidia-smi, and nvidia-ml-py is not installed")
    try:
        plain = subprocess_output.run([smi], subprocess_output.PROBE_SECONDS).stdout
    except subprocess.TimeoutExpired:
        late = f"nvidia-smi has not answered within {subprocess_output.PROBE_SECONDS:g} s"
        return GpuFacts("nvidia-smi", late, is_late=True)
    except OSError as error:
        return GpuFacts("nvidia-smi", f"nvidia-smi: {error.strerror}")
    driver = re.search(r"Driver Version: *([\d.]+)", plain)
    if driver is None:
        said = (plain.strip().splitlines() or ["it says nothing"])[0]
        return GpuFacts("nvidia-smi", problem=f"nvidia-smi: {said[:200]}")
    cuda = re.search(r"CUDA (?:UMD )?Version: *(\d+)\.(\d+)", plain)
    query = said_by(smi, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits")
    gpus = [_of_row(row.split(", ")) for row in query.splitlines() if row.count(", ") >= 6]
    return GpuFacts(
        "nvidia-smi",
        driver=driver[1],
        cuda=tuple(map(int, cuda.groups())) if cuda else (),
        gpus=tuple(gpus),
        apart=_apart(said_by(smi, "topo", "-p2p", "r")) if len(gpus) > 1 else (),
    )


def _of_row(row: Sequence[str]) -> Gpu:
    memory, used, busy = (int(word) if word.isdigit() else 0 for word in row[1:4])
    capability = tuple(int(part) for part in row[5].split(".") if part.isdigit())
    return Gpu(row[0], memory * _MIB, used * _MIB, busy, row[4], capability, uuid=row[6])


def _apart(matrix: str) -> tuple[tuple[int, int], ...]:
    """The pairs of ``nvidia-smi topo -p2p r`` that are not OK: rows ``GPU0  X  OK  CNS``."""
    found = []
    for number, words in re.findall(r"^\s*GPU(\d+)((?:\s+[A-Z]+)+)\s*$", matrix, re.MULTILINE):
        cells = words.split()
        a = int(number)
        found += [(a, b) for b, cell in enumerate(cells) if b > a and cell not in ("OK", "X")]
    return tuple(found)


def _packages() -> dict[str, str]:
    pattern = re.compile(r"jax-cuda\d+-(plugin|pjrt)|nvidia-nccl-cu\d+|jaxlib")
    found = {}
    for each in importlib.metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-")
        if pattern.fullmatch(name):
            found.setdefault(name, each.version)
    return found


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(probe())))
