"""Several hosts, on each transport: right numbers, and faults that all processes report.

Three hosts are no power of two, so the algorithms take their other branch; eight take three rounds.
Of two hosts with three processes each, most pairs have no connection at the start.
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
from faults.hosts import NEEDED, Hosts, some_hosts
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
    NEEDED,
    pytest.mark.parametrize(
        "transport",
        ["tls", "plain", "stripes", pytest.param("ucx", marks=needs(ucx.is_here(), ucx.WHY))],
        indirect=True,
    ),
    pytest.mark.parametrize("layout", [(3, 1), (4, 1), (8, 1), (2, 3)], ids="{0[0]}x{0[1]}".format),
]


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> dict[str, str]:
    return TRANSPORTS[request.param]


Layout = tuple[int, int]
"""Hosts, and processes on each."""


@pytest.fixture
def hosts(tmp_path: Path, layout: Layout, transport: dict[str, str]) -> Iterator[Hosts]:
    with some_hosts(tmp_path, layout[0], forked=True) as hosts:
        for host in range(layout[0]):
            hosts.write_key(host)
        hosts.variables.update(transport, LOCKSTEP_COLLECTIVE_TIMEOUT="60")
        yield hosts


def places(layout: Layout) -> list[tuple[int, int]]:
    """Host and local number of each process."""
    return [(host, local) for host in range(layout[0]) for local in range(layout[1])]


def run(hosts: Hosts, layout: Layout, program: Path, *args: str, **env: str) -> list[str]:
    """What the processes have said; all of them have ended."""
    started = [
        hosts.launch(host, program, *args, local=local, per_host=layout[1], env=env)
        for host, local in places(layout)
    ]
    deadline = time.monotonic() + TIMEOUT
    while any(process.poll() is None for process in started):
        said = "\n".join(hosts.said(*place) for place in places(layout))
        assert time.monotonic() < deadline, f"hangs\n{said}"
        time.sleep(0.1)
    return [
        hosts.said(*place) + f"ended with {process.returncode}\n"
        for place, process in zip(places(layout), started, strict=True)
    ]


def devices(count: int) -> str:
    return f"--xla_force_host_platform_device_count={count}"


def test_every_collective_of_every_dtype_is_right(hosts: Hosts, layout: Layout) -> None:
    program = CHECKS / "collectives.py"
    said = run(hosts, layout, program, XLA_FLAGS=devices(2))
    for text in said:
        held = [line.removeprefix("ok ") for line in text.splitlines() if line.startswith("ok ")]
        assert held == checks.names(program), "\n".join(said)
        assert "ended with 0" in text
    digests = {line for text in said for line in text.splitlines() if line.startswith("digest ")}
    assert len(digests) == 1, "sums of floating-point numbers differ between processes"
    assert_nothing_left(hosts)


def test_every_step_of_random_programs_is_exact(hosts: Hosts, layout: Layout) -> None:
    processes = len(places(layout))
    said = run(
        hosts, layout, random_programs.WORKER,
        "--first", str(400_000 + 1000 * processes), "--count", "10",
        **random_programs.ENVIRON, XLA_FLAGS=devices(2 if processes < 8 else 1),
    )  # fmt: skip
    assert all(" 0 wrong" in text for text in said), "\n".join(said)
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill", "was killed by SIGKILL (signal 9) after 24 collectives"),
        ("raise", "failed: RuntimeError: no more of this"),
        ("exit", "ended by sys.exit() at between_hosts.py:79 after 24 collectives"),
        ("dtype", "called all-reduce (sum) of 1 x s32"),
    ],
)
def test_a_fault_of_one_process_raises_on_all_others(
    hosts: Hosts, layout: Layout, fault: str, words: str
) -> None:
    said = run(hosts, layout, PROGRAM, fault)
    everything = "\n".join(said)
    host, local = places(layout)[1]
    culprit = f"process 1 (pid {hosts.pid(host, local)} on host{'ab'[host]})"
    for process, text in enumerate(said):
        if process == 1:
            continue
        assert "ended with 3" in text, everything
        [raised] = [line for line in text.splitlines() if line.startswith("raised ")]
        assert raised.count(culprit) >= 1, everything
        assert f"{culprit} {words}" in text, everything
    assert_nothing_left(hosts)
