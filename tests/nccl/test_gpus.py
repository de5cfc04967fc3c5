"""Which GPUs each process of a host gets."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from lanes import full
from lockstep._errors import ConfigError
from lockstep.hosts import host_attempt
from lockstep.nccl import gpus
from lockstep.system.interfaces import interfaces, is_loopback
from processes import captured, write_command
from support import run_lockstep

NAMED = {
    "indices": ("0,2", 2),
    "a UUID": ("GPU-e538d51b-2a99-0eec-4696-fbcf1a3f80c3", 1),
    "MIG": ("MIG-7fd2c2f5-0c6c-5a2a-8f6d-6a4f0b9f1e5f,MIG-2", 2),
    "none": ("", 0),
    "none, as CUDA has it": ("-1", 0),
    "none, as batch systems have it": ("NoDevFiles", 0),
    "all before the first that is none": ("0,2,-1,1", 2),
    "a word": ("0,all,1", 1),
    "spaces, and a comma too many": (" 0 , 1 ,", 2),
    "the same twice": ("0,0", 1),
    "the start of a UUID": ("GPU-e538,GPU-12ab", 2),
    "MIG as old drivers have it": ("MIG-GPU-8932f937/1/0", 1),
    "a sign": ("+1,-0", 0),
    "digits of another script": ("\u0663", 0),
}


@pytest.mark.parametrize(("named", "count"), NAMED.values(), ids=NAMED)
def test_what_the_user_has_hidden_is_not_counted(named: str, count: int) -> None:
    assert gpus.count("cuda", {"CUDA_VISIBLE_DEVICES": named}) == count


def test_amd_has_variables_of_its_own() -> None:
    assert gpus.count("rocm", {"ROCR_VISIBLE_DEVICES": "0,1,2"}) == 3
    assert gpus.count("rocm", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,1"}) == 1
    # HIP counts what ROCr has left.
    some = {"ROCR_VISIBLE_DEVICES": "4,5"}
    assert gpus.count("rocm", {**some, "HIP_VISIBLE_DEVICES": "0"}) == 1
    assert gpus.count("rocm", {**some, "HIP_VISIBLE_DEVICES": "0,1,2"}) == 2
    assert gpus.count("rocm", {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}) == 0


def test_a_gpu_that_the_host_does_not_have_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_of_cuda", lambda: 4)
    assert gpus.count("cuda", {"CUDA_VISIBLE_DEVICES": "3,4,0"}) == 1
    assert gpus.count("cuda", {}) == 4


def test_a_container_counts_the_devices_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_ROOT", tmp_path)
    for number in range(8):
        (tmp_path / "proc/driver/nvidia/gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    assert gpus.count("cuda", {}) == 8  # a host on which nothing has used them yet
    (tmp_path / "dev").mkdir()
    for name in ("nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert gpus.count("cuda", {}) == 2


def test_a_driver_that_does_not_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_ROOT", tmp_path)
    monkeypatch.setattr(gpus, "_SMI_SECONDS", 0.2)
    write_command(tmp_path / "nvidia-smi", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"has not answered within 0\.2 s.*CUDA_VISIBLE_DEVICES"):
        gpus.count("cuda", {})
    assert gpus.count("cuda", {"CUDA_VISIBLE_DEVICES": "1"}) == 1
    write_command(tmp_path / "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert gpus.count("cuda", {}) == 0


@pytest.mark.parametrize(
    ("platform", "environ", "vendor"),
    [
        ("cuda", {}, "cuda"),
        ("rocm", {}, "rocm"),
        ("cpu", {}, None),
        (None, {"JAX_PLATFORMS": "cpu"}, None),
        (None, {"JAX_PLATFORMS": "cuda,cpu"}, "cuda"),
        ("tpu", {}, None),
    ],
)
def test_whose_gpus(platform: str | None, environ: dict[str, str], vendor: str | None) -> None:
    assert gpus.vendor(platform, environ) == vendor


def ids(processes: int, each: int | None, there: int) -> list[str | None]:
    found = [gpus.variables(k, processes, each, there, {}) for k in range(processes)]
    return [one.get("JAX_LOCAL_DEVICE_IDS") for one in found]


def test_each_process_has_gpus_of_its_own() -> None:
    assert ids(4, None, 4) == ["0", "1", "2", "3"]
    assert ids(2, 4, 8) == ["0,1,2,3", "4,5,6,7"]
    assert ids(1, 2, 8) == ["0,1"]
    assert ids(1, None, 8) == [None]  # it has all


def test_a_choice_of_the_user_stays() -> None:
    assert gpus.variables(1, 2, None, 2, {"JAX_LOCAL_DEVICE_IDS": "0"}) == {}


def test_processes_that_share_a_gpu_are_of_different_hosts_for_nccl() -> None:
    found = [gpus.variables(k, 4, None, 2, {}) for k in range(4)]
    assert [one["JAX_LOCAL_DEVICE_IDS"] for one in found] == ["0", "1", "0", "1"]
    hosts = [one["NCCL_HOSTID"] for one in found]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert float(found[0]["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == pytest.approx(0.375)
    assert gpus.variables(0, 4, None, 2, {"NCCL_HOSTID": "mine"}).get("NCCL_HOSTID") is None


@pytest.mark.parametrize(("processes", "each", "there"), [(3, 3, 4), (5, 2, 4), (7, 1, 3)])
def test_processes_that_share_have_gpus_of_their_own_on_each_host(
    processes: int, each: int, there: int
) -> None:
    used: dict[str, list[str]] = {}
    for k in range(processes):
        own = gpus.variables(k, processes, each, there, {})
        ids = own["JAX_LOCAL_DEVICE_IDS"].split(",")
        assert len(set(ids)) == each
        used.setdefault(own["NCCL_HOSTID"], []).extend(ids)
        assert float(own["XLA_PYTHON_CLIENT_MEM_FRACTION"]) * len(used) <= 0.75
    for ids in used.values():
        assert len(set(ids)) == len(ids)  # NCCL refuses two ranks of a host on one GPU


MIGS = {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b,MIG-c"}


def test_each_process_is_shown_its_own_mig_device() -> None:
    """CUDA shows a process one, whatever is named: `local_device_ids` could not choose."""
    found = [gpus.variables(k, 3, None, 3, MIGS) for k in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["MIG-a", "MIG-b", "MIG-c"]
    assert [one["JAX_LOCAL_DEVICE_IDS"] for one in found] == ["0"] * 3
    assert len({one["NCCL_HOSTID"] for one in found}) == 3  # they may be of one GPU
    assert gpus.variables(0, 1, None, 3, MIGS) == {}
    with pytest.raises(ConfigError, match="shows a process one MIG device"):
        gpus.check_each(2, 3, MIGS)


def test_too_few_gpus_are_an_error_that_says_how_many() -> None:
    with pytest.raises(ConfigError, match=r"3 processes with 2 GPUs each need 6 GPUs, .* shows 4"):
        gpus.check(3, 2, 4, {})
    hidden = {"CUDA_VISIBLE_DEVICES": "0,x"}
    with pytest.raises(ConfigError, match=r"this host shows 1 \(CUDA_VISIBLE_DEVICES=0,x\)\."):
        gpus.check(2, None, 1, hidden)
    gpus.check(4, None, 4, {})
    gpus.check(1, None, 4, {})
    gpus.check(64, None, 0, {})  # there are none, and JAX says so
    gpus.check(64, None, 4, {"JAX_LOCAL_DEVICE_IDS": "0"})  # the user has chosen


def test_more_gpus_for_a_process_than_there_are_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"-d 9 asks for 9 GPUs .* this host shows 8"):
        gpus.check(1, 9, 8, {})
    with pytest.raises(ConfigError, match=r"-d 9 asks for 9 GPUs .* this host shows 8"):
        gpus.check_each(9, 8, {})
    with pytest.raises(ConfigError, match=r"-d 4 asks for 4 GPUs .* this host shows 1"):
        gpus.of_task(1, 2, 4, 1, {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"})


# Under a cluster's launcher

EACH_ITS_OWN = {
    "srun --gpus-per-task=1": {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "3"},
    "srun --tres-per-task=gres/gpu:1": {"SLURM_TRES_PER_TASK": "gres/gpu:1"},
    "srun --gpu-bind=single:1": {"SLURM_GPU_BIND": "single:1", "CUDA_VISIBLE_DEVICES": "0"},
    "a wrapper of mpirun": {"CUDA_VISIBLE_DEVICES": "2"},
    "AMD": {"ROCR_VISIBLE_DEVICES": "2"},
}
ALL_SEE_ALL = {
    "srun --gres=gpu:4": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    "srun --gpus-per-task=1 --gpu-bind=none": {
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_GPU_BIND": "none",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    },
    "mpirun": {},
}


@pytest.mark.parametrize("environ", EACH_ITS_OWN.values(), ids=EACH_ITS_OWN)
def test_a_task_that_sees_only_its_own_gpu_uses_that(environ: dict[str, str]) -> None:
    # The third of four tasks: JAX's own detection would take GPU 2, which it does not see.
    assert gpus.of_task(2, 4, None, 1, environ) == {}
    assert gpus.of_task(2, 4, 1, 1, environ) == {"JAX_LOCAL_DEVICE_IDS": "0"}


def test_two_tasks_with_two_gpus_each_are_not_taken_for_sharing_two() -> None:
    environ = {"SLURM_GPUS_PER_TASK": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert gpus.of_task(1, 2, None, 2, environ) == {}
    assert gpus.of_task(1, 2, 2, 2, environ) == {"JAX_LOCAL_DEVICE_IDS": "0,1"}


@pytest.mark.parametrize("environ", ALL_SEE_ALL.values(), ids=ALL_SEE_ALL)
def test_tasks_that_see_all_gpus_choose_by_their_local_rank(environ: dict[str, str]) -> None:
    assert gpus.of_task(2, 4, None, 4, environ) == {"JAX_LOCAL_DEVICE_IDS": "2"}
    assert gpus.of_task(1, 2, 2, 4, environ) == {"JAX_LOCAL_DEVICE_IDS": "2,3"}


def test_a_pod_has_its_gpus_for_itself() -> None:
    assert gpus.of_task(0, 1, None, 8, {}) == {}
    assert gpus.of_task(0, 1, 4, 8, {}) == {"JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}


def test_more_tasks_than_gpus_are_an_error_where_none_hides_any() -> None:
    with pytest.raises(ConfigError, match=r"8 processes .* 8 GPUs, and this host shows 4\."):
        gpus.of_task(7, 8, None, 4, {})
    with pytest.raises(ConfigError, match="gpus-per-task"):
        gpus.of_task(7, 8, None, 4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert gpus.of_task(7, 8, None, 0, {}) == {}


def worker(tmp_path: Path, **environ: str) -> str:
    """What a program sees that is the third task of four on a host."""
    program = tmp_path / "program.py"
    program.write_text(SHOW)
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "2",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_TASKS_PER_NODE": "4",
    }
    command = [sys.executable, "-m", "lockstep", "worker", "--collectives", "gloo"]
    done = captured(
        [*command, "--platform", "cuda", str(program)], env={**os.environ, **step, **environ}
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.usefixtures("four_gpus")
def test_a_worker_under_slurm_has_its_gpu(tmp_path: Path) -> None:
    assert worker(tmp_path) == "2 None"
    own = worker(tmp_path, SLURM_GPUS_PER_TASK="1", CUDA_VISIBLE_DEVICES="0")
    assert own == "None None"


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose nvidia-smi shows four GPUs."""
    lines = "\n".join(f"GPU {k}: NVIDIA H200 (UUID: GPU-{k})" for k in range(4))
    write_command(tmp_path / "nvidia-smi", f"echo '{lines}'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


SHOW = "import os; print(os.environ.get('JAX_LOCAL_DEVICE_IDS'), os.environ.get('NCCL_HOSTID'))"


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("platform", "environ", "shown"),
    [
        ("cuda", {}, ["0,1 None", "2,3 None"]),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, ["0,1 None", "2,3 None"]),
        ("cpu", {}, ["None None"] * 2),
    ],
)
def test_the_launcher_gives_each_process_its_gpus(
    platform: str, environ: dict[str, str], shown: list[str]
) -> None:
    result = run_lockstep(["--platform", platform], SHOW, d=2, env=environ, forked=True)
    assert result.by_process == {i: [line] for i, line in enumerate(shown)}, result


@pytest.mark.parametrize(
    ("joins", "ids"),
    [
        ("", "2,3"),
        full("lockstep.initialize()", "2,3"),
        ("lockstep.initialize(local_device_ids=[1])", "1"),  # what the program says counts
    ],
)
def test_a_program_uses_its_own_gpus_also_where_it_joins_no_job(joins: str, ids: str) -> None:
    program = f"""
import lockstep
import jax
from jax._src import xla_bridge
{joins}
print(xla_bridge.CUDA_VISIBLE_DEVICES.value)
"""
    environ = {"JAX_LOCAL_DEVICE_IDS": "2,3"}
    result = run_lockstep(["--platform", "cpu"], program, env=environ, forked=True)
    assert result.by_process == {0: [ids], 1: [ids]}, result


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("options", "n", "d", "words"),
    [
        ([], 6, 1, r"6 processes with 1 GPU each need 6 GPUs, and .* shows 4\..*--oversubscribe"),
        (["--oversubscribe"], 2, 5, r"-d 5 asks for 5 GPUs for each process, and .* shows 4\."),
    ],
)
def test_the_launcher_refuses_more_than_there_is(
    options: list[str], n: int, d: int, words: str
) -> None:
    options = ["--platform", "cuda", *options]
    result = run_lockstep(options, SHOW, n=n, d=d, expect_status=2, forked=True)
    assert re.search(words, result.stderr), result


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("given", "environ", "name"),
    [
        ("lo", {}, None),  # other hosts do not reach it: the check before the start refuses it
        ("", {}, None),
        ("{address}", {}, "={name}"),
        ("{name}", {}, "={name}"),
        ("{name}", {"NCCL_SOCKET_IFNAME": "ib0"}, "ib0"),
    ],
)
def test_nccl_takes_the_network_of_the_job(
    given: str, environ: dict[str, str], name: str | None, tmp_path: Path
) -> None:
    own = next(each for each in interfaces() if not is_loopback(each.address))
    words = {"name": own.name, "address": own.address}
    order = {
        "count": 2,
        "environ": environ,
        "config": {},
        "oversubscribe": False,
        "interface": given.format(**words),
        "platform": "cuda",
        "program": ["train.py"],
        "devices": None,
        "bind": "none",
        "first": 0,
        "total": 4,
        "max_restarts": 0,
        "preload": [],
    }
    found = host_attempt._spec(order, tmp_path).environ_of(1).get("NCCL_SOCKET_IFNAME")
    assert found == (name.format(**words) if name else None)
    on_cpus = host_attempt._spec({**order, "platform": "cpu"}, tmp_path).environ_of(1)
    assert on_cpus.get("NCCL_SOCKET_IFNAME") == environ.get("NCCL_SOCKET_IFNAME")


def test_a_process_without_gpus_imports_nothing_of_it() -> None:
    program = """
import sys
import lockstep
lockstep.initialize()
import jax
jax.block_until_ready(jax.jit(jax.numpy.sum)(jax.numpy.ones(3)))
parts = ("lockstep.nccl", "lockstep.doctor", "pynvml")
print([name for name in sys.modules if name.startswith(parts)])
with open("/proc/self/maps") as maps:
    print("liblockstep_nccl" in maps.read())
"""
    result = run_lockstep([], program, timeout=100)
    assert result.by_process == {0: ["[]", "False"], 1: ["[]", "False"]}, result
