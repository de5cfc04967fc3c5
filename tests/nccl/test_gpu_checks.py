"""How what is found out about GPUs before a job starts is judged."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from hosts.states import REQUEST, state
from lockstep._finding import OK, PROBLEM, WARNING, Finding
from lockstep.hosts.checks import gpu_findings
from lockstep.nccl import gpu_checks, known_hangs
from lockstep.nccl.devices import Gpu, GpuFacts

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


def test_facts_are_the_same_after_their_way_from_another_host() -> None:
    known = dataclasses.replace(GOOD, apart=((0, 1),), gpus=(H200, Gpu("x", processes=(1, 2))))
    assert GpuFacts.from_json(json.loads(json.dumps(dataclasses.asdict(known)))) == known


# Several hosts


def on_hosts(*known: GpuFacts | None) -> list[dict[str, Finding]]:
    names = "abc"[: len(known)]
    hosts = [
        state(n, names, gpus=dataclasses.asdict(own) if own else {}) for n, own in enumerate(known)
    ]
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
    hosts = [state(0, "ab", gpus={"gpus": 7}), state(1, "ab", gpus=dataclasses.asdict(GOOD))]
    [finding] = gpu_findings.check(hosts[0], hosts, REQUEST)
    assert finding.status == PROBLEM
