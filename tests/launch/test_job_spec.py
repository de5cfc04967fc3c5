"""The environment and the cores that each process gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep._config import Config
from lockstep.processes import cpu_affinity
from lockstep.processes.job_spec import (
    LaunchSpec,
    overridden_collectives,
    overridden_devices,
    worker_environ,
)
from lockstep.system import process_tree


def job(**values: object) -> LaunchSpec:
    defaults = {
        "program": ("a.py",),
        "processes": 3,
        "config": Config(coordinator="127.0.0.1:4000"),
        "environ": {},
        "run_dir": Path("/run"),
    }
    return LaunchSpec(**{**defaults, **values})  # type: ignore[arg-type]


def test_each_process_is_told_its_place() -> None:
    config = Config.from_environ(job().environ_of(2))
    assert (config.process_id, config.num_processes) == (2, 3)
    assert (config.local_process_id, config.local_num_processes) == (2, 3)
    assert config.coordinator == "127.0.0.1:4000"
    assert config.run_dir == "/run"


def test_an_outer_job_leaves_no_variable_behind() -> None:
    outer = {"LOCKSTEP_PROCESS_ID": "7", "LOCKSTEP_COLLECTIVES": "gloo", "HOME": "/h"}
    environ = job(environ=outer).environ_of(0)
    assert environ["LOCKSTEP_PROCESS_ID"] == "0"
    assert "LOCKSTEP_COLLECTIVES" not in environ
    assert environ["HOME"] == "/h"


def test_the_launcher_s_choice_of_collectives_is_the_only_one() -> None:
    name = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
    assert name not in job(environ={name: "gloo"}).environ_of(0)
    assert overridden_collectives({name: "gloo"}, "lockstep") == "gloo"
    for agrees in ({name: "gloo"}, {name: "mpi"}, {}):
        assert overridden_collectives(agrees, "gloo") is None


def test_all_processes_hash_strings_alike_unless_the_user_says_otherwise() -> None:
    for unset in ({}, {"PYTHONHASHSEED": ""}):
        assert worker_environ(unset, Config())["PYTHONHASHSEED"] == "0"
    for chosen in ("7", "random"):
        assert worker_environ({"PYTHONHASHSEED": chosen}, Config())["PYTHONHASHSEED"] == chosen


def test_devices_and_platform_become_jax_variables() -> None:
    environ = job(devices=4, platform="cpu").environ_of(0)
    assert environ["JAX_NUM_CPU_DEVICES"] == "4"
    assert environ["JAX_PLATFORMS"] == "cpu"
    untouched = job(environ={"JAX_PLATFORMS": "cuda"}).environ_of(0)
    assert untouched["JAX_PLATFORMS"] == "cuda"
    assert "JAX_NUM_CPU_DEVICES" not in untouched


def test_blas_has_the_share_of_the_cores_of_one_device() -> None:
    name = "OPENBLAS_NUM_THREADS"
    apart, shared = [frozenset(range(8 * i, 8 * i + 8)) for i in range(3)], [frozenset({0, 1})] * 3
    assert job(cores=apart).environ_of(1)[name] == "8"
    assert job(cores=apart, devices=3).environ_of(1)[name] == "2"
    assert job(cores=shared).environ_of(1)[name] == "1"
    unbound = max(1, len(os.sched_getaffinity(0)) // 3)
    assert job().environ_of(0)[name] == str(unbound)
    for asked in (name, "OMP_NUM_THREADS"):
        environ = job(cores=apart, environ={asked: "5"}).environ_of(0)
        assert (environ[asked], environ.get(name)) == ("5", "5" if asked == name else None)
    assert name not in job(processes=1).environ_of(0)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=3", "glibc.malloc.check=3:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_huge_pages_unless_the_user_has_decided(given: str | None, made: str) -> None:
    environ = {} if given is None else {"GLIBC_TUNABLES": given}
    assert worker_environ(environ, Config())["GLIBC_TUNABLES"] == made


@pytest.mark.parametrize(
    ("flags", "devices", "overridden"),
    [
        ("", 4, None),
        ("--xla_force_host_platform_device_count=8", None, None),
        ("--xla_force_host_platform_device_count=4", 4, None),
        ("--xla_x=1 --xla_force_host_platform_device_count=8", 4, 8),
    ],
)
def test_a_device_count_in_xla_flags_that_d_overrides(
    flags: str, devices: int | None, overridden: int | None
) -> None:
    assert overridden_devices({"XLA_FLAGS": flags}, devices) == overridden


@given(st.integers(1, 40), st.integers(1, 40))
def test_shares_are_disjoint_and_even(number: int, processes: int) -> None:
    shares = cpu_affinity.shares(range(number), processes)
    assert len(shares) == processes
    if number < processes:
        assert set(shares) == {frozenset(range(number))}
    else:
        assert sorted(core for share in shares for core in share) == list(range(number))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("number", "processes", "devices", "worth"),
    [(2, 2, 4, False), (2, 1, 1, True), (8, 2, 4, True), (8, 2, 5, False), (3, 2, None, False)],
)
def test_binding_has_to_leave_room(
    number: int, processes: int, devices: int | None, worth: bool
) -> None:
    assert cpu_affinity.worth_binding(number, processes, devices) is worth


def test_descendants_at_any_depth() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 9, 9: 9}
    assert process_tree.below(2, parents) == {3, 4}
    assert process_tree.below(1, parents) == {2, 3, 4, 5}
    assert process_tree.below(7, parents) == set()
