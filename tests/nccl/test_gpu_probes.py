"""What is found out about the GPUs of a host: by NVML, by nvidia-smi, or that there are none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep._finding import PROBLEM, WARNING
from lockstep.doctor import gpus as doctor
from lockstep.hosts.checks import facts
from lockstep.nccl import devices, gpu_checks
from lockstep.nccl.devices import Gpu, GpuFacts
from lockstep.system import subprocess_output
from nccl import nvml_stand_in
from processes import captured, write_command

SCRIPT: dict[str, Any] = {
    "driver": "580.159.04",
    "cuda": 13000,
    "gpus": [
        {"name": "NVIDIA H200", "used": 5 << 30, "busy": 7, "pids": [123]},
        {"name": "NVIDIA H200", "mig": True, "mode": 2},
        {"name": "NVIDIA L4", "capability": [8, 9]},
    ],
    "apart": [[0, 2]],
}


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stand-in of nvidia-ml-py, which processes find first."""
    (tmp_path / "pynvml.py").write_text(nvml_stand_in.SOURCE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(devices.__file__).parents[2]}")
    monkeypatch.setenv("NVML_STAND_IN", json.dumps(SCRIPT))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.usefixtures("nvml")
def test_the_gpus_are_read_by_nvml() -> None:
    known = devices.ask(60)
    assert (known.found_by, known.problem) == ("NVML", "")
    assert (known.driver, known.cuda, known.apart) == ("580.159.04", (13, 0), ((0, 2),))
    names = ["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"]
    assert [gpu.name for gpu in known.gpus] == names
    assert known.gpus[0] == Gpu(
        names[0], 141 << 30, 5 << 30, 7, "Default", (9, 0), (123,), "GPU-0e538d51"
    )
    assert (known.gpus[1].busy, known.gpus[1].mode) == (0, "Prohibited")
    assert known.gpus[2].capability == (8, 9)
    assert known.packages["jaxlib"]
    assert ("lo", "127.0.0.1") in known.interfaces
    assert gpu_checks.named(known) == "2 x NVIDIA H200, 1 x NVIDIA L4"


@pytest.mark.parametrize(
    ("script", "words", "is_late"),
    [
        ({"error": "Driver/library version mismatch"}, "NVML: Driver/library", False),
        ({"hangs": True}, "has not answered within 3 s", True),
        ({"gpus": [{}]}, "NVML: ", False),
    ],
)
def test_a_driver_in_trouble_is_a_finding(
    nvml: Path, monkeypatch: pytest.MonkeyPatch, script: dict[str, Any], words: str, is_late: bool
) -> None:
    monkeypatch.setenv("NVML_STAND_IN", json.dumps(script))
    known = devices.ask(3 if is_late else 60)
    assert words in known.problem
    assert known.is_late == is_late
    assert gpu_checks.findings(known)[0].status == (WARNING if is_late else PROBLEM)


def test_a_driver_that_no_signal_reaches_is_not_waited_for(
    nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: left.append(process))
    monkeypatch.setenv("NVML_STAND_IN", json.dumps({"hangs": True}))
    assert devices.ask(1).is_late
    [process] = left
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(60)


SMI = """
case "$*" in
"") echo "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04   CUDA Version: 13.0 |" ;;
--query*) echo "NVIDIA H200, 143771, 5120, 7, Default, 9.0, GPU-1"
          echo "NVIDIA H200, 143771, [N/A], [N/A], Prohibited, 9.0, GPU-2" ;;
topo*) printf ' \\tGPU0\\tGPU1\\n GPU0\\tX\\tCNS\\n GPU1\\tCNS\\tX\\n\\n  X    = Self\\n' ;;
esac
"""


def test_the_gpus_are_read_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    write_command(smi, SMI)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    known = devices._by_smi()
    assert (known.driver, known.cuda, known.apart) == ("580.159.04", (13, 0), ((0, 1),))
    assert known.gpus == (
        Gpu("NVIDIA H200", 143771 << 20, 5 << 30, 7, "Default", (9, 0), uuid="GPU-1"),
        Gpu("NVIDIA H200", 143771 << 20, 0, 0, "Prohibited", (9, 0), uuid="GPU-2"),
    )
    write_command(smi, "exit 9")
    assert devices._by_smi().problem == "nvidia-smi: it says nothing"
    # What it prints where the driver does not run has another status.
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    write_command(smi, f'echo "{failed}"\nexit 9')
    assert devices._by_smi().problem == f"nvidia-smi: {failed}"
    write_command(smi, "exec sleep 60")
    monkeypatch.setattr(subprocess_output, "PROBE_SECONDS", 0.2)
    late = devices._by_smi()
    assert (late.is_late, late.problem) == (True, "nvidia-smi has not answered within 0.2 s")


@pytest.mark.usefixtures("nvml")
def test_the_doctor_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.nccl.gpus.has_nvidia", lambda: True)
    named = {each.name: each for each in doctor.findings()}
    assert named["driver"].found.startswith("580.159.04, for CUDA up to 13.0")
    assert named["use of GPUs"].found == "GPU 1: compute mode Prohibited"
    there = facts.gather({"platform": "cuda", "gpu_seconds": 60})["gpus"]
    assert GpuFacts.from_json(there).driver == "580.159.04"


NO_GPU = """
import importlib, sys
from lockstep.doctor import gpus
from lockstep.hosts.checks import facts
assert gpus.findings() == []
assert facts.gather({})["gpus"] == {} == facts.gather({"platform": "cuda"})["gpus"]
print(sorted(name for name in sys.modules if "pynvml" in name or name.endswith(".devices")))
"""


def test_without_a_gpu_nothing_of_it_is_imported(
    nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = nvml / "touched"
    monkeypatch.setenv("NVML_STAND_IN", json.dumps({**SCRIPT, "touched": str(touched)}))
    # No process is started, either: `nvidia-smi` would be, were it there.
    program = f"import subprocess\nsubprocess.Popen = None\n{NO_GPU}"
    done = captured([sys.executable, "-c", program])
    assert done.stdout.strip() == "[]", done.stderr
    assert not touched.exists()
    devices.ask(60)
    assert touched.exists()  # the stand-in is found, so the test above could fail
