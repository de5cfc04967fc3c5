"""Judgement on hosts, from made-up facts: each problem with its words, host and fix."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hosts.states import FACTS, REQUEST, failing, state, states
from lockstep._finding import OK, PROBLEM, WARNING, Finding
from lockstep.hosts import starters
from lockstep.hosts.checks import network_probe, preflight
from lockstep.hosts.checks.address_choice import Choice
from lockstep.hosts.checks.host_findings import other_version
from lockstep.hosts.checks.request import HostState, Request
from lockstep.hosts.checks.ssh_errors import Failure
from support import assert_unsaid


def found(hosts: list[HostState], request: Request = REQUEST) -> dict[str, dict[str, Finding]]:
    """What is no ``ok``, by host and name."""
    return {
        label: {each.name: each for each in findings if each.status != OK}
        for label, findings in preflight.check(hosts, request).items()
    }


def test_good_hosts_have_no_problem() -> None:
    checked = preflight.check(states(), REQUEST)
    assert found(states()) == {"a": {}, "b": {}, "c": {}}
    assert preflight.with_problems(checked) == []
    assert preflight.table(checked) == ""


def version(**changed: str) -> dict[str, Any]:
    return {"versions": {**FACTS["versions"], **changed}}


@pytest.mark.parametrize(
    ("facts", "name", "status", "words", "fix"),
    [
        (
            version(jax="0.8.0"),
            "jax",
            PROBLEM,
            "0.8.0, but 0.11.1 on a and c",
            "ssh b /venv/bin/python -m pip install jax==0.11.1",
        ),
        (version(jaxlib=""), "jaxlib", PROBLEM, "not installed, but 0.11.1 on a", "jaxlib==0.11.1"),
        ({"python": "3.11.9"}, "Python", WARNING, "3.11.9, but 3.12 on a and c", "--python"),
        (
            {"directory_problem": "does not exist"},
            "directory",
            PROBLEM,
            "/work does not exist",
            "rsync -a /work/ b:/work/; or --chdir DIR",
        ),
        (
            {"program": {"path": "/work/train.py", "sha256": "", "problem": "No such file"}},
            "program",
            PROBLEM,
            "/work/train.py: No such file",
            "rsync -a /work/train.py b:/work/train.py",
        ),
        (
            {"program": {"path": "/work/train.py", "sha256": "bb", "problem": ""}},
            "program",
            PROBLEM,
            "/work/train.py is another file than on a and c",
            "rsync -a /work/train.py b:/work/train.py",
        ),
        (
            {"run_dir": {"path": "/tmp", "free": 0, "problem": "No space left on device"}},
            "disk",
            PROBLEM,
            "no file of a run can be written to /tmp (TMPDIR): No space left on device",
            "ssh b df -h /tmp",
        ),
        (
            {"run_dir": {"path": "/tmp", "free": 1 << 20, "problem": ""}},
            "disk",
            PROBLEM,
            "1 MiB free in /tmp (TMPDIR): a run needs 16 MiB",
            "set TMPDIR on b",
        ),
        (
            {"run_dir": {"path": "/tmp", "free": 100 << 20, "problem": ""}},
            "disk",
            WARNING,
            "100 MiB free",
            "make room",
        ),
        (
            {"memory": 100 << 20},
            "memory",
            WARNING,
            "1 process with jax need",
            "fewer processes on",
        ),
        ({"open_files": 256}, "open files", PROBLEM, "at most 256", "limits.conf on b"),
    ],
)
def test_one_host_differs(facts: Any, name: str, status: str, words: str, fix: str) -> None:
    hosts = [state(0), state(1, **facts), state(2)]
    bad = found(hosts)
    assert bad["a"] == bad["c"] == {}
    assert list(bad["b"]) == [name]
    assert bad["b"][name].status == status
    assert words in bad["b"][name].found
    assert fix in bad["b"][name].fix


def test_a_program_that_no_host_has_is_not_to_be_copied() -> None:
    missing: dict[str, Any] = {
        "program": {"path": "/work/x.py", "sha256": "", "problem": "No such file"}
    }
    bad = found([state(i, "abc", **missing) for i in range(3)])["a"]["program"]
    assert "on all hosts" in bad.found
    assert "rsync" not in bad.fix


def test_another_version_of_lockstep() -> None:
    failure = other_version(state(1), "1.1.0", REQUEST)
    assert failure.found == "1.1.0, but this machine has 1.2.0"
    assert failure.fix == (
        "install version 1.2.0 there as here, from the same wheel or source tree: "
        "ssh b /venv/bin/python -m pip install WHEEL"
    )


def test_what_this_machine_lacks_is_not_to_be_copied() -> None:
    lacking = dataclasses.replace(REQUEST, lacking=frozenset({"/work", "/work/train.py"}))
    hosts = [state(0), state(1, directory_problem="does not exist"), state(2)]
    fix = found(hosts, lacking)["b"]["directory"].fix
    assert fix == "--chdir DIR with a directory that all hosts have"
    missing = {"path": "/work/train.py", "sha256": "", "problem": "No such file"}
    fix = found([state(0), state(1, program=missing), state(2)], lacking)["b"]["program"].fix
    assert fix == "copy the file of the other hosts to /work/train.py"


def test_copies_go_by_the_ssh_of_the_user() -> None:
    request = dataclasses.replace(REQUEST, ssh="ssh -F cfg")
    assert state(1).copied(request, "/w/x") == "rsync -a -e 'ssh -F cfg' /w/x b:/w/x"
    here = dataclasses.replace(state(0, directory_problem="does not exist"), by_ssh=False)
    assert found([here, state(1)])["a"]["directory"].fix.startswith("--chdir DIR")


def test_in_a_slurm_allocation_fixes_go_by_srun() -> None:
    request = dataclasses.replace(REQUEST, ssh=starters.SRUN, srun=True)
    versions = {**state(1).facts["versions"], "jax": "0.9.0"}
    hosts = [state(0), state(1, versions=versions), state(2)]
    assert found(hosts, request)["b"]["jax"].fix == (
        "srun --overlap --nodes=1 --ntasks=1 -w b /venv/bin/python -m pip install jax==0.11.1"
    )
    assert state(1).copied(request, "/w/x") == "sbcast --force /w/x /w/x"
    assert state(1).copied(request, "/w/") == ""


def test_clock() -> None:
    hosts = [dataclasses.replace(state(0), clock_ahead=-0.5), state(1)]
    assert found(hosts)["a"] == {}
    hosts[0] = dataclasses.replace(hosts[0], clock_ahead=-90.0)
    bad = found(hosts)["a"]["clock"]
    assert "90 s behind this machine's" in bad.found
    assert bad.fix == "ssh a sudo timedatectl set-ntp true"


def test_a_name_that_means_loopback_matters_to_gloo_alone() -> None:
    hosts = [state(0), state(1, host_name="b", resolves=["127.0.1.1"])]
    assert found(hosts)["b"] == {}
    notes = [each.found for each in preflight.check(hosts, REQUEST)["b"]]
    assert "b is 127.0.1.1: not used, the job gets addresses" in notes
    bad = found(hosts, dataclasses.replace(REQUEST, collectives="gloo"))["b"]["host name"]
    assert "--collectives gloo listens there" in bad.found
    assert "in /etc/hosts of b: 10.0.0.2 b" in bad.fix


def test_a_port_that_is_taken() -> None:
    taken = {**state(0).listening, "port_problem": "the port is taken by process 7"}
    hosts = [dataclasses.replace(state(0), listening=taken), state(1)]
    bad = found(hosts, dataclasses.replace(REQUEST, port=29500))["a"]["port"]
    assert bad.found == "29500 of 10.0.0.1 is not free: the port is taken by process 7"
    assert "ssh a ss -ltnp" in bad.fix


def test_a_host_without_an_address_on_the_network() -> None:
    b = dataclasses.replace(state(1), choice=Choice("", "no interface ib0"), listening={})
    bad = found([state(0, "ab"), dataclasses.replace(b, probed={})])
    assert bad["a"] == {}
    assert bad["b"]["address"].found == "no interface ib0"
    deaf = {"address": "10.0.0.2", "port": 0, "problem": "Cannot assign requested address"}
    bad = found([state(0), dataclasses.replace(state(1), listening=deaf)])["b"]["address"]
    assert "10.0.0.2: Cannot assign requested address; it has eth0 10.0.0.2" in bad.found


def test_no_route_between_two_hosts_names_both_and_the_cause() -> None:
    a, b, c = states()
    b = failing(b, "c", network_probe.UNREACHABLE, "No route to host")
    c = failing(c, "b", network_probe.TIMEOUT)
    bad = found([a, b, c])
    assert bad["a"] == bad["c"] == {}
    finding = bad["b"]["network"]
    assert "no route between b (10.0.0.2) and c (10.0.0.3)" in finding.found
    assert "on different networks, or a firewall forbids it (No route to host)" in finding.found
    assert "let TCP pass between b and c" in finding.fix
    assert "--interface: b has eth0 10.0.0.2; c has eth0 10.0.0.3" in finding.fix


def test_one_direction() -> None:
    a, b, c = states()
    c = failing(c, "b", network_probe.TIMEOUT, "timed out")
    bad = found([a, b, c])
    assert bad["b"] == {}
    assert (
        "c (10.0.0.3) does not reach b (10.0.0.2), only the other way" in bad["c"]["network"].found
    )
    assert "nothing answers in time: a firewall" in bad["c"]["network"].found


def test_a_host_that_no_other_reaches_is_told_once() -> None:
    a, b, c = (failing(each, "c", network_probe.FOREIGN) for each in states())
    c = failing(failing(states()[2], "a", network_probe.REFUSED), "b", network_probe.REFUSED)
    bad = found([a, b, c])
    assert bad["a"] == bad["b"] == {}
    assert (
        "no other host reaches c at 10.0.0.3: another machine answers" in bad["c"]["network"].found
    )


def test_an_address_that_all_hosts_have() -> None:
    hosts = [
        dataclasses.replace(
            failing(host, other, network_probe.REFUSED, "Connection refused"),
            listening={**host.listening, "address": "172.17.0.1"},
        )
        for host, other in zip(states("ab"), "ba", strict=True)
    ]
    said = found(hosts)["a"]["network"].found
    assert "several hosts may have it, as they have the bridge of their containers" in said
    assert_unsaid("refused", said)


def test_two_hosts_that_do_not_reach_each_other() -> None:
    a, b = states("ab")
    a, b = failing(a, "b", network_probe.TIMEOUT), failing(b, "a", network_probe.TIMEOUT)
    bad = found([a, b])
    assert "no route between a (10.0.0.1) and b (10.0.0.2)" in bad["a"]["network"].found
    assert bad["b"] == {}


def test_the_table_shows_all_problems_of_all_hosts() -> None:
    hosts = states("abcd")
    hosts[1] = dataclasses.replace(hosts[1], failure=Failure("ssh", "it is down", "start it"))
    hosts[2] = state(2, "abcd", **version(jax="0.8.0"), python="3.11.0")
    hosts[3] = state(3, "abcd", directory_problem="does not exist")
    checked = preflight.check(hosts, REQUEST)
    assert preflight.with_problems(checked) == ["b", "c", "d"]
    assert preflight.headline(checked) == "nothing was started: 3 problems on 3 of 4 hosts"
    assert preflight.table(checked).splitlines() == [
        "  b  problem  ssh        it is down",
        "                         fix: start it",
        "  c  warning  Python     3.11.0, but 3.12 on a and d: what one host pickles another may "
        "not read",
        "                         fix: make the virtual environments with the same Python, or name "
        "one with --python",
        "     problem  jax        0.8.0, but 0.11.1 on a and d",
        "                         fix: ssh c /venv/bin/python -m pip install jax==0.11.1",
        "  d  problem  directory  /work does not exist",
        "                         fix: rsync -a /work/ d:/work/; or --chdir DIR with a directory "
        "that all hosts have",
    ]
