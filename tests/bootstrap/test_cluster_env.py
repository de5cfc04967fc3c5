"""Where a process stands, from the variables that real launchers set."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_environs import (
    CRAY_PALS,
    MPICH,
    OPEN_MPI_4,
    OPEN_MPI_5,
    SBATCH,
    SLURM,
    TORCHRUN,
    coordinator,
    place,
)
from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import RankInfo, detect, expand_counts, expand_hosts


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        (SLURM, place(4, 8, 1, 3, "n002:62113", "Slurm")),
        (SBATCH, None),
        (OPEN_MPI_4, place(1, 2, 1, 2, None, "Open MPI")),
        (OPEN_MPI_5, place(2, 4, 0, 2, "n001:65277", "Open MPI")),
        (MPICH, place(1, 2, 1, 2, None, "MPICH (PMI)")),
        (CRAY_PALS, place(7, 8, 3, 4, None, "Cray PALS")),
        (TORCHRUN, place(3, 4, 1, 2, "n001:29501", "torchrun")),
    ],
    ids=["none", "srun", "sbatch", "ompi4", "ompi5", "mpich", "pals", "torchrun"],
)
def test_real_environments(environ: dict[str, str], found: RankInfo | None) -> None:
    assert detect({"HOME": "/h", **environ}) == found


def test_open_mpi_4_over_several_hosts_names_the_host_of_mpirun() -> None:
    spread = OPEN_MPI_4 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert coordinator(spread) == "192.0.2.2:61955"
    only_6 = {"OMPI_MCA_orte_hnp_uri": "33751040.0;tcp6://[fd00::2,fd00::3]:54391"}
    assert coordinator(spread | only_6) == "[fd00::2]:61955"
    with pytest.raises(LaunchError, match="OMPI_MCA_orte_hnp_uri='nonsense'; set LOCKSTEP_COORD"):
        detect(spread | {"OMPI_MCA_orte_hnp_uri": "nonsense"})


def test_open_mpi_without_any_address_has_no_coordinator() -> None:
    bare = {k: v for k, v in OPEN_MPI_5.items() if not k.startswith("P")}
    found = detect(bare)
    assert found is not None
    assert found.coordinator is None
    assert not found.on_one_host


def test_torchrun_style_variables_set_by_hand() -> None:
    by_hand = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "fd00::1", "MASTER_PORT": "2345"}
    assert detect(by_hand) == place(0, 2, None, None, "[fd00::1]:2345", "torchrun")


def test_torchrun_on_one_host_needs_no_port_of_its_own() -> None:
    found = detect(TORCHRUN | {"WORLD_SIZE": "2", "RANK": "1"})
    assert found == place(1, 2, 1, 2, None, "torchrun")
    last = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "65535"}
    assert detect(TORCHRUN | last) == found


def test_one_process_is_on_one_host() -> None:
    found = detect({"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert found is not None
    assert found.on_one_host


def test_rank_and_world_size_alone_mean_nothing() -> None:
    assert detect({"RANK": "0", "WORLD_SIZE": "2"}) is None


def test_the_innermost_launcher_counts() -> None:
    # mpirun inside a Slurm allocation: Slurm's variables are those of Open MPI's daemon.
    assert detect(SLURM | OPEN_MPI_4) == detect(OPEN_MPI_4)
    assert detect(SLURM | TORCHRUN) == detect(TORCHRUN)
    daemon = SLURM | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    assert detect(daemon | MPICH) == detect(MPICH)
    # srun --mpi=pmi2 sets PMI variables itself; its own know more.
    pmi2 = {"PMI_RANK": "4", "PMI_SIZE": "8", "PMI_FD": "13"}
    assert detect(SLURM | pmi2) == detect(SLURM)


def test_steps_and_jobs_have_different_ports() -> None:
    ports = set()
    for job in (123456, 123457):
        for step in range(3):
            found = coordinator(SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
            ports.add(int((found or "").split(":")[1]))
    assert len(ports) == 6
    assert all(61440 <= port < 65536 for port in ports)


def test_jax_s_own_variables_choose_the_coordinator() -> None:
    for environ in (SLURM, MPICH, TORCHRUN):
        plain = detect(environ)
        assert plain is not None
        found = detect(environ | {"JAX_COORDINATOR_ADDRESS": "head:1234"})
        assert found == dataclasses.replace(plain, coordinator="head:1234")
    assert coordinator(SLURM | {"JAX_COORDINATOR_PORT": "777"}) == "n002:777"


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"PMI_RANK": "1"}, "PMI_RANK is set but PMI_SIZE is not"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not set"),
        (MPICH | {"PMI_RANK": "2"}, r"MPICH \(PMI\) say rank 2 of 2 processes: they contradict"),
        (MPICH | {"MPI_LOCALRANKID": "5"}, "local rank 5 of 2 processes on this host"),
        (MPICH | {"PMI_SIZE": "many"}, "PMI_SIZE='many' .* is not a whole number"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        (TORCHRUN | {"MASTER_PORT": "65535"}, "MASTER_PORT=65535 .* not a port: .* 1 to 65534"),
        (SLURM | {"JAX_COORDINATOR_PORT": "0"}, "JAX_COORDINATOR_PORT=0 .* is not a port"),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "head"}, "ADDRESS='head' has no port: on all"),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a", "SLURM_JOB_ID": "1"},
            "SLURM_STEP_NUM_TASKS nor SLURM_NTASKS",
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1"},
            "no SLURM_STEP_NODELIST; set LOCKSTEP_COORDINATOR",
        ),
        (SLURM | {"SLURM_STEP_NODELIST": "n[1-"}, "not a list of hosts"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3x2"}, "not a list of tasks per node"),
    ],
)
def test_errors_say_what_is_missing_or_wrong(environ: dict[str, str], error: str) -> None:
    with pytest.raises(LaunchError, match=error):
        detect(environ)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", "n1"),
        ("n1,x-2,y.z", "n1 x-2 y.z"),
        ("n[001-003,7],x1", "n001 n002 n003 n7 x1"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[3,5]-ib", "r1n3-ib r1n5-ib r2n3-ib r2n5-ib"),
        ("n[1-2]a,n[1-2]b", "n1a n2a n1b n2b"),
    ],
)
def test_host_lists(text: str, hosts: str) -> None:
    assert expand_hosts(text) == hosts.split()


@pytest.mark.parametrize("text", ["", "n[", "n]1", "n[a-b]", "n[3-1]", "n[1,]", "a,,b", "n[[1]]"])
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(LaunchError):
        expand_hosts(text)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.integers(1, 6))
def test_host_lists_come_apart_as_they_were_put_together(numbers: list[int], width: int) -> None:
    text = f"n[{','.join(f'{n:0{width}}' for n in numbers)}]"
    assert expand_hosts(text) == [f"n{n:0{width}}" for n in numbers]


def test_tasks_per_node() -> None:
    assert expand_counts("4(x2),3") == [4, 4, 3]
    assert expand_counts("1") == [1]
