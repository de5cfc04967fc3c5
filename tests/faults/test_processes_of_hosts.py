"""Two hosts with three processes each. Most pairs of them have no connection at the start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.random_programs import test_random_programs as random_programs
from engine.test_programs import PROGRAMS as CHECKS
from engine.test_programs import checks
from faults.host_jobs import PROGRAM, assert_nothing_left
from faults.hosts import Hosts, possible, some_hosts
from lanes import needs

HOSTS, PER_HOST, CULPRIT = 2, 3, 1
TRANSPORTS = {
    "tls": {},
    "plain": {"LOCKSTEP_ENCRYPTION": "0"},
    "stripes": {"LOCKSTEP_CONNECTIONS": "3"},
}
TIMEOUT = 300.0
"""Seconds for a job, of which six processes on two cores take most to import and compile."""

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(TIMEOUT + 60),
    needs(possible(), "no network namespaces, or no ip or nsenter: no second host"),
]


@pytest.fixture(params=sorted(TRANSPORTS))
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    with some_hosts(tmp_path, HOSTS, forked=True) as hosts:
        for host in range(HOSTS):
            hosts.write_key(host)
        hosts.variables.update(TRANSPORTS[request.param], LOCKSTEP_COLLECTIVE_TIMEOUT="60")
        yield hosts


def run(hosts: Hosts, program: Path, *args: str, **env: str) -> list[str]:
    """What the processes have said; all of them have ended."""
    places = [(host, local) for host in range(HOSTS) for local in range(PER_HOST)]
    started = [
        hosts.start(host, program, *args, local=local, per_host=PER_HOST, env=env)
        for host, local in places
    ]
    deadline = time.monotonic() + TIMEOUT
    while any(process.poll() is None for process in started):
        said = "\n".join(hosts.said(*place) for place in places)
        assert time.monotonic() < deadline, f"hangs\n{said}"
        time.sleep(0.1)
    return [
        hosts.said(*place) + f"ended with {process.returncode}\n"
        for place, process in zip(places, started, strict=True)
    ]


def test_every_collective_of_every_dtype_is_right(hosts: Hosts) -> None:
    program = CHECKS / "collectives.py"
    said = run(hosts, program)
    for text in said:
        held = [line.removeprefix("ok ") for line in text.splitlines() if line.startswith("ok ")]
        assert held == checks.names(program), "\n".join(said)
        assert "ended with 0" in text
    assert_nothing_left(hosts)


def test_every_step_of_random_programs_is_exact(hosts: Hosts) -> None:
    args = ("--first", "500000", "--count", "10")
    said = run(hosts, random_programs.WORKER, *args, **random_programs.ENVIRON)
    assert all(" 0 wrong" in text for text in said), "\n".join(said)
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill", "was killed by SIGKILL (signal 9) after 24 collectives"),
        ("raise", "failed: RuntimeError: no more of this"),
        ("exit", "ended after 24 collectives"),
        ("dtype", "called all-reduce (sum) of 1 x s32"),
    ],
)
def test_a_fault_of_one_process_raises_on_all_others(hosts: Hosts, fault: str, words: str) -> None:
    said = run(hosts, PROGRAM, fault)
    everything = "\n".join(said)
    culprit = f"process {CULPRIT} (pid {hosts.pid(0, CULPRIT)} on hosta)"
    for process, text in enumerate(said):
        if process != CULPRIT:
            assert "ended with 3" in text, everything
            assert f"{culprit} {words}" in text, everything
    assert_nothing_left(hosts)
