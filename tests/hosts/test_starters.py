"""How agents are started: the commands of ssh and srun."""

from __future__ import annotations

import pytest

from lockstep._errors import ConfigError
from lockstep.hosts import allocation, starters
from lockstep.hosts.host_list import Host, parse_hosts
from lockstep.hosts.starters import Reach
from lockstep.launch import options

HARMLESS = {
    "-oBatchMode=yes",
    "-oConnectTimeout=5",
    "-oControlMaster=no",
    "-T",
    "-x",
}
"""No question, a deadline, no shared connection of its own, no terminal, no X11."""


def test_no_option_of_ssh_weakens_it() -> None:
    first, *words = Reach(ssh=("ssh", "-F", "file"), python="python").command(Host("me@far"))
    assert (first, words[:2]) == ("ssh", ["-F", "file"])
    end = words.index("--")
    assert set(words[2:end]) == HARMLESS
    assert words[end + 1 :] == ["me@far", "exec python -P -m lockstep.hosts.host_agent"]


@pytest.mark.parametrize(("seconds", "limit"), [(60.0, 30), (1.0, 1)])
def test_ssh_may_take_half_of_what_a_host_may_take(seconds: float, limit: int) -> None:
    command = Reach(python="python", seconds=seconds).command(Host("far"))
    assert f"-oConnectTimeout={limit}" in command


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "me@-oProxyCommand=x", "-F"])
def test_a_name_of_a_host_is_no_option(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a host"):
        parse_hosts(name)


def test_srun_starts_one_agent_beside_other_steps() -> None:
    command = Reach(python="python", srun=True).command(Host("n2", 4))
    assert command[0] == "srun"
    assert {"--nodes=1", "--ntasks=1", "--nodelist=n2", "--overlap", "--unbuffered"} <= {*command}
    assert command[-4:] == ["python", "-P", "-m", "lockstep.hosts.host_agent"]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"}
STEP = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n1"}


def test_the_hosts_of_an_allocation() -> None:
    hosts = allocation.around(SLURM)
    assert hosts == [Host("n1", 2), Host("n2", 1)]
    assert allocation.is_elsewhere(hosts, SLURM)
    assert allocation.by_srun(hosts[1:], SLURM)
    assert not allocation.by_srun([Host("n3")], SLURM)
    assert not allocation.by_srun(hosts, {})
    assert allocation.around({}) == []
    # A task of srun; but not the step in which salloc may run its shell.
    assert allocation.around(SLURM | STEP | {"SLURM_STEP_ID": "0"}) == []
    assert allocation.around(SLURM | STEP | {"SLURM_STEP_ID": "4294967290"}) == hosts
    # Started by a launcher that does not say all that `lockstep worker` needs.
    assert allocation.around(SLURM | {"PMI_RANK": "0"}) == []


def test_an_allocation_of_one_host() -> None:
    one = [Host("n1", 4)]
    assert not allocation.is_elsewhere(one, SLURM | {"SLURMD_NODENAME": "n1"})
    assert allocation.is_elsewhere(one, SLURM)  # a shell from salloc on another host
    assert not allocation.is_elsewhere([Host("localhost", 4)], SLURM)
    assert not allocation.is_elsewhere(one, {"LSB_JOBID": "7"})  # LSF's scripts run there


def test_words_of_ssh() -> None:
    parser = options.run_parser()
    assert parser.parse_args([]).ssh is starters.SSH
    asked = parser.parse_args(["--ssh", "ssh"]).ssh  # in a Slurm allocation: instead of srun
    assert asked == starters.SSH
    assert asked is not starters.SSH
    assert starters.ssh_words("ssh -F 'a b'") == ("ssh", "-F", "a b")
    for text in ("", "ssh '"):
        with pytest.raises(ValueError):
            starters.ssh_words(text)
