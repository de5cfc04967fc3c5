"""The place of a process by the ``JAX_*`` variables (Kubeflow) and by SkyPilot's."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from cluster_environs import (
    JAXJOB,
    OPEN_MPI_4,
    SKYPILOT,
    SLURM,
    TORCHRUN,
    TRAINJOB,
    coordinator,
    place,
)
from lanes import sample
from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import RankInfo, detect, explain_none, names_of_job, renewed
from lockstep.doctor.optional import check_cluster
from processes import assert_all_well, free_port, run_processes

JAX = "a launcher for JAX"
SUM = """
import sys
import lockstep, jax
{join}
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
engine = jax.config.jax_cpu_collectives_implementation
sys.stdout.write(f"sum {{jax.process_index()}} {{ranks.ravel().tolist()}} {{engine}}\\n")
"""
BARE = "jax.distributed.initialize()"
THE_GUIDE_S = """
import os
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
    coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
)
"""
"""As Kubeflow's guide for JAX has it."""
LOCKSTEP = "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'lockstep', *{}])"


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (TRAINJOB, place(1, 2, None, None, "train-node-0-0.train:29500", JAX)),
        (JAXJOB, place(2, 3, None, None, "jaxjob-simple-worker-0:6666", "a JAXJob of Kubeflow")),
        (SKYPILOT, place(1, 2, 0, 1, "10.0.0.4:63010", "SkyPilot")),
    ],
    ids=["trainjob", "jaxjob", "skypilot"],
)
def test_real_environments(environ: dict[str, str], found: RankInfo) -> None:
    assert detect({"HOME": "/h", **environ}) == found


@pytest.mark.parametrize(
    ("address", "port", "found"),
    [
        ("10.99.0.6", "29500", "10.99.0.6:29500"),
        ("10.99.0.6:29500", "29500", "10.99.0.6:29500"),
        ("10.99.0.6:29500", None, "10.99.0.6:29500"),
        ("fd00::6", "29500", "[fd00::6]:29500"),
        ("[fd00::6]", "29500", "[fd00::6]:29500"),
        ("[fd00::6]:1", None, "[fd00::6]:1"),
    ],
)
def test_the_port_may_stand_in_the_other_variable(
    address: str, port: str | None, found: str
) -> None:
    told = TRAINJOB | {"JAX_COORDINATOR_ADDRESS": address}
    told = told | {"JAX_COORDINATOR_PORT": port} if port else without(told, "JAX_COORDINATOR_PORT")
    # With the variables of another launcher beside them too.
    for environ in (told, told | TORCHRUN | {"RANK": "1", "WORLD_SIZE": "2"}):
        assert coordinator(environ) == found


def test_a_job_of_one_process_needs_no_address() -> None:
    alone = {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}
    assert detect(alone) == place(0, 1, None, None, None, JAX)


def test_older_versions_of_skypilot_set_no_number_of_nodes() -> None:
    assert detect(without(SKYPILOT, "SKYPILOT_NUM_NODES")) == detect(SKYPILOT)


def test_two_tasks_of_skypilot_on_the_same_nodes_are_two_jobs() -> None:
    other = SKYPILOT | {"SKYPILOT_TASK_ID": "sky-2026-11-27-10-00-01-000000_train_2"}
    assert coordinator(SKYPILOT) != coordinator(other)
    assert names_of_job(SKYPILOT) != names_of_job(other)


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        (TRAINJOB | {"JAX_PROCESS_ID": "2"}, "variables of a launcher for JAX say rank 2 of 2"),
        (TRAINJOB | {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two' .* not a whole number"),
        (TRAINJOB | {"JAX_COORDINATOR_PORT": "29501"}, "29500' and .*=29501 name different ports"),
        (TRAINJOB | {"JAX_COORDINATOR_ADDRESS": "head:99999"}, "'head:99999' is not HOST:PORT"),
        (TRAINJOB | {"JAX_COORDINATOR_ADDRESS": "head:"}, "'head:' is not HOST:PORT"),
        (TRAINJOB | {"JAX_COORDINATOR_PORT": "0"}, "JAX_COORDINATOR_PORT=0 .* is not a port"),
        (JAXJOB | {"PROCESS_ID": "3"}, "variables of a JAXJob of Kubeflow say rank 3 of 3"),
        (JAXJOB | {"NUM_PROCESSES": "all"}, r"\bNUM_PROCESSES='all' .* not a whole number"),
        (JAXJOB | {"COORDINATOR_PORT": "0"}, r"\bCOORDINATOR_PORT=0 \(from a JAXJob"),
        (
            JAXJOB | {"COORDINATOR_ADDRESS": "a:1"},
            "^COORDINATOR_ADDRESS='a:1' and COORDINATOR_PORT",
        ),
        (
            JAXJOB | TORCHRUN,
            "torchrun say process 3 of 4, PROCESS_ID and NUM_PROCESSES say process 2 of 3",
        ),
        (SKYPILOT | {"SKYPILOT_NODE_RANK": "2"}, "variables of SkyPilot say rank 2 of 2"),
        (SKYPILOT | {"SKYPILOT_NUM_NODES": "3"}, "SKYPILOT_NUM_NODES=3, but .* has 2 addresses"),
        (without(SKYPILOT, "SKYPILOT_NODE_IPS"), "SKYPILOT_NODE_IPS is not: SkyPilot sets both"),
        (
            TRAINJOB | TORCHRUN,
            "torchrun say process 3 of 4, JAX_PROCESS_ID and JAX_NUM_PROCESSES say process 1 of 2",
        ),
        (TRAINJOB | SLURM, "Two launchers disagree: the variables of Slurm say process 4 of 8"),
    ],
)
def test_contradictions(environ: dict[str, str], error: str) -> None:
    with pytest.raises(LaunchError, match=error):
        detect(environ)
    said = check_cluster(environ)
    assert said.status == "warning"
    assert re.search(error, said.found)
    assert re.match(r"\w", said.found)


def test_one_variable_alone_is_no_place() -> None:
    for name, other in (("NUM_PROCESSES", "PROCESS_ID"), ("PROCESS_ID", "NUM_PROCESSES")):
        alone = {f"JAX_{name}": "0"}
        assert detect(alone) is None
        assert f"JAX_{name} is set but JAX_{other} is not" in explain_none(alone)
        assert f"JAX_{other} is not" in check_cluster(alone).found
        # Another launcher knows.
        assert detect(alone | SLURM) == detect(SLURM)
    assert detect(without(JAXJOB, "COORDINATOR_PORT")) is None


def test_the_innermost_launcher_counts_and_the_doctor_says_why() -> None:
    several = {"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3", "JAX_COORDINATOR_ADDRESS": "a:1"}
    assert detect(SKYPILOT | several) == place(3, 4, None, None, "a:1", JAX)
    assert detect(SKYPILOT | OPEN_MPI_4) == detect(OPEN_MPI_4)
    said = check_cluster(SKYPILOT | several).found
    assert "(JAX_NUM_PROCESSES, JAX_PROCESS_ID), SkyPilot (SKYPILOT_NODE_RANK): lockstep" in said
    assert (
        "is process 3 of 4, from a launcher for JAX, the innermost launcher; the others: " in said
    )
    assert said.endswith("SkyPilot: 1 of 2")
    # A pod may have several processes, so the numbers of its Job need not be theirs.
    pod = {"JOB_COMPLETIONS": "2", "JOB_COMPLETION_INDEX": "1"}
    assert detect(pod | several) == place(3, 4, None, None, "a:1", JAX)
    assert check_cluster(pod | several).found.endswith("the others: Kubernetes: 1 of 2")
    # A pod of a TrainJob has the first variable of Kubernetes alone.
    winner = "from a launcher for JAX, the innermost launcher; the others: Kubernetes, without the"
    assert winner in check_cluster(TRAINJOB).found
    assert detect(JAXJOB | TORCHRUN | {"RANK": "2", "WORLD_SIZE": "3"}) == place(
        2, 3, 1, 2, "n001:29501", "torchrun"
    )


def test_the_doctor_says_what_does_not_count() -> None:
    said = check_cluster(TRAINJOB).found
    assert "JAX_DISTRIBUTED_BACKEND=gloo is not read (by JAX neither): --collectives" in said
    address = {"JAX_COORDINATOR_ADDRESS": "10.99.0.6", "JAX_COORDINATOR_PORT": "29500"}
    said = check_cluster(TORCHRUN | address).found
    assert "3 of 4; JAX_COORDINATOR_ADDRESS names the coordinator, 10.99.0.6:29500" in said
    gpus = check_cluster(SKYPILOT | {"SKYPILOT_NUM_GPUS_PER_NODE": "8"}).found
    assert "SKYPILOT_NUM_GPUS_PER_NODE=8: the process of a node has all of them" in gpus


def test_a_pod_without_the_number_of_pods_is_told_so_by_the_doctor() -> None:
    said = check_cluster({"JOB_COMPLETION_INDEX": "0"})
    assert said.status == "warning"
    assert "set JOB_COMPLETIONS in the manifest" in said.found


def test_the_variables_of_another_attempt() -> None:
    assert renewed({"HOME": "/h"}, 0, 2, "a:1") == {}
    told = TRAINJOB | renewed(TRAINJOB, 0, 4, "[fd00::1]:7")
    assert detect(told) == place(0, 4, None, None, "[fd00::1]:7", JAX)
    told = JAXJOB | renewed(JAXJOB, 0, 4, "[fd00::1]:7")
    assert detect(told) == place(0, 4, None, None, "[fd00::1]:7", "a JAXJob of Kubeflow")
    # Names that others use too: without all four they are no place.
    assert renewed({"PROCESS_ID": "3", "NUM_PROCESSES": "4"}, 0, 2, "a:1") == {}


def environs(names: str) -> list[dict[str, str]]:
    """Those of two processes on this machine."""
    port = str(free_port())
    if names == "jaxjob":
        both = {"COORDINATOR_ADDRESS": "127.0.0.1", "COORDINATOR_PORT": port, "NUM_PROCESSES": "2"}
        return [{**JAXJOB, **both, "PROCESS_ID": str(rank)} for rank in range(2)]
    both = {**TRAINJOB, "JAX_COORDINATOR_ADDRESS": "127.0.0.1", "JAX_COORDINATOR_PORT": port}
    if names == "with port":
        both["JAX_COORDINATOR_ADDRESS"] += f":{port}"
    return [
        {**both, "JAX_PROCESS_ID": str(rank), "JOB_COMPLETION_INDEX": str(rank)}
        for rank in range(2)
    ]


def assert_sums(program: str | Path, names: str) -> None:
    ended = run_processes(program, environs(names), timeout=100)
    assert_all_well(ended)
    for rank, end in enumerate(ended):
        assert f"sum {rank} [0, 1] mpi\n" in end.stdout, end


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "join"),
    [
        ("without port", BARE),
        ("with port", "lockstep.initialize()"),
        ("jaxjob", BARE),
    ],
)
def test_import_lockstep_finds_them(names: str, join: str) -> None:
    assert_sums(SUM.format(join=join), names)


@sample(
    ("names", "join"),
    [("without port", BARE), ("with port", THE_GUIDE_S), ("jaxjob", BARE)],
    0,
)
def test_the_worker_finds_them(names: str, join: str, tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text(textwrap.dedent(SUM.format(join=join)))
    assert_sums(LOCKSTEP.format(["worker", str(program)]), names)


@pytest.mark.full
def test_a_run_on_one_machine_inside_a_pod_is_a_job_of_its_own(tmp_path: Path) -> None:
    """The program reads its place from the variables, which are those of the pod."""
    program = tmp_path / "sum.py"
    program.write_text(textwrap.dedent(SUM.format(join=THE_GUIDE_S)))
    run = LOCKSTEP.format(["run", "-n", "2", str(program)])
    [ended] = run_processes(run, [TRAINJOB], timeout=100)
    assert ended.status == 0, ended
    assert sorted(ended.stdout.splitlines()) == [f"[{i}] sum {i} [0, 1] mpi" for i in range(2)]


def test_a_contradiction_ends_the_worker_and_a_plain_program(tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text(textwrap.dedent(SUM.format(join=BARE)))
    worker = LOCKSTEP.format(["worker", str(program)])
    [ended] = run_processes(worker, [SKYPILOT | {"SKYPILOT_NUM_NODES": "3"}])
    assert ended.status == 2, ended
    assert "contradict each other" in ended.stderr
    [ended] = run_processes(program, [TRAINJOB | {"JAX_PROCESS_ID": "2"}])
    assert ended.status == 1, ended
    assert re.search("LaunchError: .*contradict each other", ended.stderr), ended
