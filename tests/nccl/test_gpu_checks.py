"""What is found out about GPUs before a job starts, and how it is judged."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hosts.states import REQUEST, state
from lockstep._finding import OK, PROBLEM, WARNING, Finding
from lockstep.doctor import gpus as doctor
from lockstep.hosts.checks import facts, gpu_findings
from lockstep.nccl import devices, gpu_checks, known_hangs
from lockstep.nccl.devices import Gpu, GpuFacts
from lockstep.system import subprocess_output
from nccl import nvml_stand_in
from processes import captured

H200 = Gpu("NVIDIA H200", 141 << 30, 4 << 20, capability=(9, 0))
GOOD = GpuFacts(
    "NVML",
    driver="580.159.04",
    cuda=(13, 0),
    gpus=(H200, H200),
    packages={
        "jax-cuda13-plugin": "0.11.2",
        "jax-cuda13-pjrt": "0.11.2",
        "jaxlib": "0.11.2",
        "nvidia-nccl-cu13": "2.30.7",
    },
    machine="x86_64",
    shared_memory=8 << 30,
    interfaces=(("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("eth0", "10.0.0.3")),
)


def packages(**changed: str) -> dict[str, str]:
    return {**GOOD.packages, **{name.replace("_", "-"): v for name, v in changed.items()}}


def found(**changed: Any) -> dict[str, Finding]:
    known = dataclasses.replace(GOOD, **changed)
    return {each.name: each for each in gpu_checks.findings(known, several=True)}


def test_a_good_host_has_nothing_to_mend() -> None:
    checked = found()
    assert {each.status for each in checked.values()} == {OK}
    assert checked["driver"].found == ("580.159.04, for CUDA up to 13.0; jax-cuda13-plugin 0.11.2")
    assert checked["NCCL"].found == "2.30.7"
    assert checked["NCCL's network"].found == "eth0 (10.0.0.3)"
    assert set(checked) == {
        *("driver", "NCCL", "use of GPUs", "peer access", "/dev/shm", "NCCL's network")
    }


CASES: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "an old driver": (
        {"driver": "550.54.15", "cuda": (12, 4)},
        "driver",
        PROBLEM,
        "CUDA 13 needs a driver from 580.0 on",
        "pip install 'jax[cuda12]'",
    ),
    "an old GPU": (
        {"gpus": (Gpu("Tesla V100", capability=(7, 0)),)},
        "driver",
        PROBLEM,
        "Tesla V100 is too old for CUDA 13",
        "jax[cuda12]",
    ),
    "parts of two versions": (
        {"packages": packages(jax_cuda13_pjrt="0.11.1")},
        "driver",
        PROBLEM,
        "jax-cuda13-pjrt is 0.11.1",
        "pip install --upgrade 'jax[cuda13]'",
    ),
    "two plug-ins": (
        {"packages": packages(jax_cuda12_plugin="0.11.2")},
        "driver",
        WARNING,
        "JAX loads both",
        "pip uninstall jax-cuda12-plugin",
    ),
    "a driver that does not answer": (
        {"problem": "NVIDIA's driver has not answered within 3 s", "is_late": True, "gpus": ()},
        "driver",
        WARNING,
        "has not answered",
        "nvidia-smi -pm 1",
    ),
    "a broken driver": (
        {"problem": "NVML: Driver/library version mismatch", "gpus": ()},
        "driver",
        PROBLEM,
        "version mismatch",
        "nvidia-smi",
    ),
    "a hang that is known on Arm": (
        {"packages": packages(nvidia_nccl_cu13="2.29.2"), "machine": "aarch64"},
        "NCCL",
        WARNING,
        "2.29.2 may hang: on Arm a process waits forever",
        "pip install --upgrade nvidia-nccl-cu13",
    ),
    "hangs that are known everywhere": (
        {"packages": packages(nvidia_nccl_cu13="2.25.1")},
        "NCCL",
        WARNING,
        "by the order of two threads (fixed in 2.28.9, https://github.com/NVIDIA/nccl/releases/tag/"
        "v2.28.9-1), and 1 more; Lockstep records no collectives of it, but launches",
        "nvidia-nccl-cu13",
    ),
    "no NCCL": (
        {"packages": {"jax-cuda13-plugin": "0.11.2"}},
        "NCCL",
        WARNING,
        "not installed",
        "nvidia-nccl-cu13",
    ),
    "another NCCL": (
        {"other_nccl": "/opt/lib/libnccl.so.2.26.2"},
        "NCCL",
        WARNING,
        "2.26.2 may hang",
        "unset LD_LIBRARY_PATH, which has /opt/lib/libnccl.so.2.26.2",
    ),
    "a GPU used by others": (
        {"gpus": (H200, dataclasses.replace(H200, used=70 << 30, busy=98, processes=(123,)))},
        "use of GPUs",
        WARNING,
        "GPU 1 used by others: 70 GiB of 141 GiB of GPU 1 by process 123, 98% busy",
        "CUDA_VISIBLE_DEVICES",
    ),
    "a GPU that may not be used": (
        {"gpus": (dataclasses.replace(H200, mode="Prohibited"), H200)},
        "use of GPUs",
        PROBLEM,
        "GPU 0: compute mode Prohibited",
        "nvidia-smi -i 0 -c DEFAULT",
    ),
    "GPUs that do not reach each other": (
        {"apart": ((0, 1),)},
        "peer access",
        WARNING,
        "not between GPUs 0-1",
        "topo -p2p",
    ),
    "a container's shared memory": (
        {"shared_memory": 64 << 20},
        "/dev/shm",
        WARNING,
        "64 MiB in /dev/shm",
        "--shm-size=1g",
    ),
    "an interface that is not there": (
        {"environ": {"NCCL_SOCKET_IFNAME": "ib0"}},
        "NCCL's network",
        PROBLEM,
        "NCCL_SOCKET_IFNAME=ib0 fits none of lo, docker0, eth0",
        "unset",
    ),
    "a bridge of containers": (
        {"environ": {"NCCL_SOCKET_IFNAME": "=docker0"}},
        "NCCL's network",
        PROBLEM,
        "where no other host reaches it",
        "--interface",
    ),
}


@pytest.mark.parametrize(("changed", "name", "status", "words", "fix"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_told_with_a_fix(
    changed: dict[str, Any], name: str, status: str, words: str, fix: str
) -> None:
    finding = found(**changed)[name]
    assert finding.status == status, finding
    assert words in finding.found
    assert fix in finding.fix


def test_an_old_driver_with_a_newer_cuda_beside_it_fits() -> None:
    """So NVML shows NVIDIA's package for forward compatibility, ``cuda-compat``."""
    assert found(driver="550.54.15", cuda=(13, 0))["driver"].status == OK
    assert found(driver="550.54.15", cuda=())["driver"].status == PROBLEM


BUSY = dataclasses.replace(H200, used=70 << 30, busy=98)
EIGHT = tuple(dataclasses.replace(BUSY if n == 3 else H200, uuid=f"GPU-{n}abc") for n in range(8))


@pytest.mark.parametrize(
    ("hidden", "words", "status"),
    [
        ("0,1", "2 GPUs idle", OK),
        ("GPU-1,GPU-7abc", "2 GPUs idle", OK),
        ("2,3", "GPU 3 used by others", WARNING),
        ("GPU-3a", "GPU 3 used by others", WARNING),
        ("MIG-1", "GPU 3 used by others", WARNING),  # which GPU it is of is not known
        ("", "CUDA_VISIBLE_DEVICES= hides all", WARNING),
    ],
)
def test_only_the_gpus_that_a_program_sees_have_to_be_free(
    hidden: str, words: str, status: str
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": hidden}
    finding = found(gpus=EIGHT, environ=environ)["use of GPUs"]
    assert (finding.status, words in finding.found) == (status, True), finding


def test_gpus_that_a_program_does_not_see_need_no_peer_access() -> None:
    checked = found(gpus=EIGHT, apart=((0, 7),), environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert checked["peer access"].status == OK
    one = found(gpus=EIGHT, apart=((0, 7),), environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert "peer access" not in one


def test_one_gpu_needs_no_others() -> None:
    assert set(found(gpus=(H200,), shared_memory=1 << 20, apart=())) == {
        *("driver", "NCCL", "use of GPUs", "NCCL's network")
    }


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ("", ["eth0", "eth1"]),
        ("eth", ["eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("=eth", []),
        ("^eth0", ["lo", "docker0", "eth1"]),
        ("^=eth1,lo", ["docker0", "eth0"]),
        ("ens,eth1:5000", ["eth1"]),
    ],
)
def test_the_network_is_the_one_that_nccl_takes(named: str, chosen: list[str]) -> None:
    there = [(name, "10.0.0.1") for name in ("lo", "docker0", "eth0", "eth1")]
    environ = {"NCCL_SOCKET_IFNAME": named}
    assert [name for name, _ in gpu_checks.network_of(there, environ)] == chosen
    assert gpu_checks.network_of([*there, ("ib0", "")], {})[0][0] == "ib0"
    assert gpu_checks.network_of(there[:2], {})[0][0] == "docker0"


def test_each_known_hang_has_a_source_and_a_version_that_mends_it() -> None:
    for hang in known_hangs.KNOWN:
        assert hang.source.startswith("https://github.com/")
        fixed = ".".join(map(str, hang.before))
        machine, gpus = hang.machine or "x86_64", "NVIDIA GB200" if hang.gpus else "H200"
        assert hang not in known_hangs.of(fixed, machine, gpus)
        before = (*hang.before[:2], hang.before[2] - 1)
        assert hang in known_hangs.of(".".join(map(str, before)), machine, gpus)
    assert known_hangs.of("unknown", "aarch64", "") == []


# The probes


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


SMI = """#!/bin/sh
case "$*" in
"") echo "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04   CUDA Version: 13.0 |" ;;
--query*) echo "NVIDIA H200, 143771, 5120, 7, Default, 9.0, GPU-1"
          echo "NVIDIA H200, 143771, [N/A], [N/A], Prohibited, 9.0, GPU-2" ;;
topo*) printf ' \\tGPU0\\tGPU1\\n GPU0\\tX\\tCNS\\n GPU1\\tCNS\\tX\\n\\n  X    = Self\\n' ;;
esac
"""


def test_the_gpus_are_read_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    known = devices._by_smi()
    assert (known.driver, known.cuda, known.apart) == ("580.159.04", (13, 0), ((0, 1),))
    assert known.gpus == (
        Gpu("NVIDIA H200", 143771 << 20, 5 << 30, 7, "Default", (9, 0), uuid="GPU-1"),
        Gpu("NVIDIA H200", 143771 << 20, 0, 0, "Prohibited", (9, 0), uuid="GPU-2"),
    )
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert devices._by_smi().problem == "nvidia-smi: it says nothing"
    # What it prints where the driver does not run has another status.
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "{failed}"\nexit 9\n')
    assert devices._by_smi().problem == f"nvidia-smi: {failed}"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
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


def test_facts_are_the_same_after_their_way_from_another_host() -> None:
    known = dataclasses.replace(GOOD, apart=((0, 1),), gpus=(H200, Gpu("x", processes=(1, 2))))
    assert GpuFacts.from_json(json.loads(json.dumps(known.to_json()))) == known


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


# Several hosts


def on_hosts(*known: GpuFacts | None) -> list[dict[str, Finding]]:
    names = "abc"[: len(known)]
    hosts = [state(n, names, gpus=own.to_json() if own else {}) for n, own in enumerate(known)]
    return [
        {each.name: each for each in gpu_findings.check(host, hosts, REQUEST) if each.status != OK}
        for host in hosts
    ]


def test_hosts_with_the_same_gpus_have_no_problem() -> None:
    assert on_hosts(GOOD, GOOD, GOOD) == [{}, {}, {}]
    assert on_hosts(GOOD, None) == [{}, {}]


def test_hosts_that_differ_are_told_with_what_most_have() -> None:
    older = dataclasses.replace(GOOD, packages=packages(nvidia_nccl_cu13="2.29.7"))
    driver = dataclasses.replace(GOOD, driver="590.1.1", gpus=(H200,))
    good, nccl, other = on_hosts(GOOD, older, driver)
    assert good == {}
    assert nccl["NCCL"].status == PROBLEM
    assert nccl["NCCL"].found == "2.29.7, but 2.30.7 on a and c"
    assert nccl["NCCL"].fix == "ssh b pip install nvidia-nccl-cu13==2.30.7"
    plugin = dataclasses.replace(GOOD, packages=packages(jax_cuda13_plugin="0.11.1"))
    *_, mixed = on_hosts(GOOD, GOOD, plugin)
    assert mixed["plug-in of JAX"].found == (
        "jax-cuda13-plugin==0.11.1, but jax-cuda13-plugin==0.11.2 on a and b"
    )
    assert mixed["plug-in of JAX"].fix == (
        "ssh c pip install jax-cuda13-plugin==0.11.2 jax-cuda13-pjrt==0.11.2"
    )
    assert other["driver"].found == "590.1.1, but 580.159.04 on a and b"
    assert other["GPUs"].found == "1 x NVIDIA H200, but 2 x NVIDIA H200 on a and b"


def test_facts_of_an_agent_that_cannot_be_read_are_a_problem() -> None:
    hosts = [state(0, "ab", gpus={"gpus": 7}), state(1, "ab", gpus=GOOD.to_json())]
    [finding] = gpu_findings.check(hosts[0], hosts, REQUEST)
    assert finding.status == PROBLEM
