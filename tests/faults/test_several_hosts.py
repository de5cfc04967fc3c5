"""Three hosts and more, on each transport: right numbers, and faults that all processes report.

Three hosts are no power of two, so the algorithms take their other branch; eight take three rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ucx
from engine.random_programs import test_random_programs as random_programs
from engine.test_programs import PROGRAMS as CHECKS
from engine.test_programs import checks
from faults.host_jobs import PROGRAM, assert_nothing_left
from faults.hosts import Hosts, possible, some_hosts
from lanes import needs

TRANSPORTS = {
    "tls": {},
    "plain": {"LOCKSTEP_ENCRYPTION": "0"},
    "stripes": {"LOCKSTEP_CONNECTIONS": "3"},
    "ucx": ucx.OVER_UCX,
}
TIMEOUT = 300.0
"""Seconds for a job, of which eight processes on two cores take most to import and compile."""

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(TIMEOUT + 60),
    needs(possible(), "no network namespaces, or no ip or nsenter: no second host"),
    pytest.mark.parametrize(
        "transport",
        ["tls", "plain", "stripes", pytest.param("ucx", marks=needs(ucx.is_here(), ucx.WHY))],
        indirect=True,
    ),
    pytest.mark.parametrize("count", [3, 4, 8]),
]


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> dict[str, str]:
    return TRANSPORTS[request.param]


@pytest.fixture
def hosts(tmp_path: Path, count: int, transport: dict[str, str]) -> Iterator[Hosts]:
    with some_hosts(tmp_path, count, forked=True) as hosts:
        for host in range(count):
            hosts.write_key(host)
        hosts.variables.update(transport, LOCKSTEP_COLLECTIVE_TIMEOUT="60")
        yield hosts


def run(hosts: Hosts, count: int, program: Path, *args: str, **env: str) -> list[str]:
    """What the processes have said, one on each host; all of them have ended."""
    started = [hosts.start(host, program, *args, env=env) for host in range(count)]
    deadline = time.monotonic() + TIMEOUT
    while any(process.poll() is None for process in started):
        assert time.monotonic() < deadline, "hangs\n" + "\n".join(map(hosts.said, range(count)))
        time.sleep(0.1)
    said = [hosts.said(host) for host in range(count)]
    for host, process in enumerate(started):
        said[host] += f"ended with {process.returncode}\n"
    return said


def devices(count: int) -> str:
    return f"--xla_force_host_platform_device_count={count}"


def test_every_collective_of_every_dtype_is_right(hosts: Hosts, count: int) -> None:
    program = CHECKS / "collectives.py"
    said = run(hosts, count, program, XLA_FLAGS=devices(2))
    for text in said:
        held = [line.removeprefix("ok ") for line in text.splitlines() if line.startswith("ok ")]
        assert held == checks.names(program), "\n".join(said)
        assert "ended with 0" in text
    digests = {line for text in said for line in text.splitlines() if line.startswith("digest ")}
    assert len(digests) == 1, "sums of floating-point numbers differ between processes"
    assert_nothing_left(hosts)


def test_every_step_of_random_programs_is_exact(hosts: Hosts, count: int) -> None:
    said = run(
        hosts, count, random_programs.WORKER,
        "--first", str(400_000 + 1000 * count), "--count", "10",
        **random_programs.ENVIRON, XLA_FLAGS=devices(2 if count < 8 else 1),
    )  # fmt: skip
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
def test_a_fault_of_one_host_raises_on_all_others(
    hosts: Hosts, count: int, fault: str, words: str
) -> None:
    said = run(hosts, count, PROGRAM, fault)
    everything = "\n".join(said)
    culprit = f"process 1 (pid {hosts.pid(1)} on hostb)"
    for host in (host for host in range(count) if host != 1):
        assert "ended with 3" in said[host], everything
        [raised] = [line for line in said[host].splitlines() if line.startswith("raised ")]
        assert raised.count(culprit) >= 1, everything
        assert f"{culprit} {words}" in said[host], everything
    assert_nothing_left(hosts)
