"""Judgement on MPI, clusters and GPUs, from made-up facts."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
from typing import Any

import pytest

from doctor.judged import assert_judged
from lockstep.doctor import optional
from lockstep.system import subprocess_output
from lockstep.system.subprocess_output import said_by

NOTHING = optional.OptionalFacts((), None, "", (), {}, "0.10.2")
H200 = "NVIDIA H200"
OF_JAXLIB = "pip install jax-cuda12-plugin==0.10.2"


def test_nothing_of_it_is_needed() -> None:
    assert optional.check_mpi(NOTHING).status == "ok"
    assert optional.check_gpus(NOTHING).status == "ok"
    assert optional.check_cluster({}).status == "ok"
    assert optional.check_trampoline({}, exists=False).status == "ok"


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to ...", "Open MPI 4.1.4"),
        ("mpirun (Open MPI) 5.0.7", "Open MPI 5.0.7"),
        ("HYDRA build details:\n    Version:       5.0.2\n    CC: gcc", "MPICH's Hydra 5.0.2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 2023",
            "Intel MPI 2021.10",
        ),
        ("slurm 23.11.4", "Slurm 23.11.4"),
        ("something else 1.0\nmore", "something else 1.0"),
        ("", "says no version"),
    ],
)
def test_kind_of_mpiexec(says: str, kind: str) -> None:
    assert optional.mpiexec_kind(says) == kind


def test_a_trampoline_that_is_not_there_is_a_warning() -> None:
    environ = {"MPITRAMPOLINE_LIB": "/opt/libmpiwrapper.so"}
    finding = optional.check_trampoline(environ, exists=False)
    found, fix = "/opt/libmpiwrapper.so does not exist", "unset MPITRAMPOLINE_LIB"
    assert_judged(finding, "warning", found, fix)
    assert optional.check_trampoline(environ, exists=True).status == "ok"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPICH"),
        (
            {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
            | {"MASTER_PORT": "99"},
            "torchrun",
        ),
    ],
)
def test_the_launcher_that_started_this_process(environ: dict[str, str], name: str) -> None:
    finding = optional.check_cluster(environ)
    assert_judged(finding, "ok", name)
    assert next(iter(environ)) in finding.found
    assert "lockstep worker is process 0 of 2" in finding.found


@pytest.mark.parametrize(
    ("environ", "missing"),
    [({"PMI_RANK": "0"}, "PMI_SIZE"), ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR")],
)
def test_variables_that_the_worker_refuses_are_no_good_here_either(
    environ: dict[str, str], missing: str
) -> None:
    assert_judged(optional.check_cluster(environ), "warning", f"{missing} is not")


def test_an_allocation_places_no_process() -> None:
    found = "Slurm (SLURM_JOB_ID), without a rank of this process: use srun"
    assert_judged(optional.check_cluster({"SLURM_JOB_ID": "3"}), "ok", found)


@pytest.mark.parametrize(
    ("gpus", "plugins", "status", "found", "fix"),
    [
        ((H200, H200), {}, "warning", "2 x NVIDIA H200", "pip install --upgrade 'jax[cuda"),
        (("/dev/kfd",), {}, "warning", "", "jax[rocm]"),  # AMD's
        ((H200,), {"jax-cuda12-plugin": "0.9.0"}, "warning", "", OF_JAXLIB),
        ((H200,), {"jax-cuda13-plugin": "0.10.2"}, "ok", H200, ""),
    ],
)
def test_gpus_need_the_plug_in_of_their_kind_and_of_the_version_of_jaxlib(
    gpus: tuple[str, ...], plugins: dict[str, str], status: str, found: str, fix: str
) -> None:
    facts = dataclasses.replace(NOTHING, gpus=gpus, plugins=plugins)
    assert_judged(optional.check_gpus(facts), status, found, fix)


def test_which_distributions_are_plug_ins() -> None:
    installed = [
        ("jax", "1"),
        ("jax-cuda12-plugin", "2"),
        ("libtpu", "3"),
        ("jax-cuda12-pjrt", "4"),
    ]
    assert optional.accelerator_plugins(installed) == {"jax-cuda12-plugin": "2", "libtpu": "3"}


def test_a_command_that_fails_says_nothing() -> None:
    assert said_by("/nonexistent/mpiexec", "--version") == ""
    assert said_by("false") == ""


def test_a_command_that_no_signal_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvidia-smi, where NVIDIA's driver hangs: it waits in the kernel."""
    left: list[Any] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: left.append(process))
    monkeypatch.setattr(subprocess_output, "PROBE_SECONDS", 0.1)
    assert said_by("sleep", "20") == ""
    [process] = left
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(60)
