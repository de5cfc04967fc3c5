"""The command line of ``lockstep run --hosts``: what is refused before any host is reached."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lockstep._errors import ConfigError
from lockstep.hosts import allocation
from lockstep.hosts.host_list import Host
from lockstep.launch import hosts_command, run_command
from processes import captured
from support import assert_unsaid

PROGRAM = "program.py"
RUN = [sys.executable, "-m", "lockstep", "run"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / PROGRAM).write_text("")
    monkeypatch.chdir(tmp_path)
    for name in ("LOCKSTEP_HOST_ID", "LOCKSTEP_ENGINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--hosts a,b --hostfile F", "--hosts and --hostfile: give one of them"),
        ("--hosts a --this-host", "--this-host excludes --hosts and --hostfile"),
        ("--hostfile none", "--hostfile none: No such file or directory"),
        ("--hosts a:2,b -n 4", "-n 4: the hosts have 3 slots"),
        ("--hosts a,b --min-hosts 3", "--min-hosts 3: the job has 2 hosts"),
        ("--hosts a --export NOT_HERE", "there is no such variable here"),
        ("--hosts a --export LOCKSTEP_STRICT=1", "all processes get Lockstep's variables anyway"),
        ("--hosts a --collectives mpi", r"mpirun -n N --host .* lockstep worker"),
        ("--chdir /tmp", "--chdir is for --hosts or --hostfile, and neither is given"),
        ("--min-hosts 1", "--min-hosts is for --hosts or --hostfile"),
        ("--grow", "--grow is for --hosts or --hostfile"),
        ("--hosts a,b --grow --max-restarts 1", "--grow is for --max-restarts K with --min-hosts"),
        ("--spares 1", "--spares is for --hosts or --hostfile"),
        ("--hosts a,b --spares 1", "--spares 1 is for --max-restarts K"),
        ("--hosts a,b --spares 2 --max-restarts 1", "of 2 hosts none would run the job"),
        ("--hosts a:2,b --spares 1 --max-restarts 1", "b:1 cannot take the place of a, which runs"),
        (
            "--hosts a,b,c --spares 1 --max-restarts 1 --min-hosts 3",
            "--min-hosts 3: the job has 2 hosts, beside its spares",
        ),
    ],
)
def test_options_that_contradict_each_other_are_explained(options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_command.main([*options.split(), PROGRAM])


ALLOCATION = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": "2"}


@pytest.mark.parametrize("hosts", ["a,b", "a.cluster,me@b.cluster", "b"])
def test_hosts_outside_of_the_allocation_are_refused(
    hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    words = f"{hosts.rpartition(',')[2]} does not belong to this Slurm allocation, which has a"
    with pytest.raises(ConfigError, match=rf"{words}\..* --outside-allocation"):
        run_command.main(["--hosts", hosts, PROGRAM])


def test_the_option_allows_hosts_outside_of_the_allocation() -> None:
    environ = {**os.environ, **ALLOCATION}
    done = captured(
        [*RUN, "--hosts", "a.invalid,b.invalid", "--outside-allocation", PROGRAM], env=environ
    )
    # Both were tried by ssh.
    assert done.returncode == 1
    assert "nothing was started: 2 problems on 2 of 2 hosts" in done.stderr, done
    assert_unsaid("allocation", done.stderr)


def test_hosts_of_the_allocation_are_its_own_by_other_names_too() -> None:
    hosts = [Host("a", 1), Host("me@a.cluster", 1), Host("localhost", 1)]
    assert allocation.outside(hosts, ALLOCATION) == []
    assert allocation.outside([Host("b", 1)], {}) == []


def test_variables_that_change_what_a_program_computes_are_passed_on() -> None:
    environ = {
        "JAX_ENABLE_X64": "1",
        "XLA_FLAGS": "--x",
        "OMP_NUM_THREADS": "3",
        "PYTHONHASHSEED": "7",
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/lib",
        "LOCKSTEP_STRICT": "1",
        "WANDB_A": "a",
        "WANDB_B": "b",
        "SECRET": "s",
    }
    always = ["JAX_ENABLE_X64", "OMP_NUM_THREADS", "PYTHONHASHSEED", "XLA_FLAGS"]
    assert sorted(hosts_command.exported([], environ)) == always
    more = hosts_command.exported(["WANDB_*", "SECRET", "X=1=2", "JAX_ENABLE_X64=0"], environ)
    assert sorted(more) == sorted([*always, "SECRET", "WANDB_A", "WANDB_B", "X"])
    assert (more["WANDB_A"], more["X"], more["JAX_ENABLE_X64"]) == ("a", "1=2", "0")
