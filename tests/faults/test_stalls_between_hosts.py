"""A process that does not arrive, on another host: what is reported of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faults.host_jobs import PROGRAM, TIMEOUT, everything, line_of, start_four
from faults.hosts import NEEDED, Hosts
from lanes import full
from lockstep.watchdog import remote
from processes import captured
from support import wait_until

pytestmark = NEEDED


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stuck", ["in be_stuck"]),
        pytest.param("stopped", ["it is stopped, by a signal (kill -STOP"], marks=pytest.mark.slow),
    ],
)
def test_a_stall_is_reported_with_what_another_host_does(
    hosts: Hosts, fault: str, words: list[str]
) -> None:
    processes = start_four(hosts, PROGRAM, fault, LOCKSTEP_STALL_WARNING="2")
    wait_until(lambda: "does meanwhile" in everything(hosts, 4), "a report", TIMEOUT)
    wait_until(lambda: all(w in everything(hosts, 4) for w in words), "what it does", TIMEOUT)
    said = everything(hosts, 4)
    process = f"process 1 (pid {hosts.pid(0, 1)} on hosta)"
    assert f"{process} has not arrived yet; processes 0, 2-3 wait" in said
    assert f"{process} does meanwhile" in said
    assert said.count("does meanwhile") == 1, said
    assert Path(remote.__file__).name not in said
    report = report_on(processes[2].pid)
    assert f"{process} has not arrived yet; processes 0, 2-3 wait" in report, report
    assert report.count("20 x all-reduce") == 4, report


def report_on(pid: int) -> str:
    """The report on the running job that a process or agent belongs to."""
    words = [sys.executable, "-m", "lockstep", "report", "--pid", str(pid)]
    done = captured(words, timeout=TIMEOUT)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "agent", "words"),
    [
        full("stopped", True, "it is stopped, by a signal (kill -STOP"),
        full("stuck", True, "in be_stuck"),
        pytest.param(
            "stopped",
            False,
            "It is stopped, or stuck in code that holds Python's lock",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_stall_of_the_only_process_of_a_host_is_reported(
    hosts: Hosts, fault: str, agent: bool, words: str
) -> None:
    limit = {"LOCKSTEP_STALL_WARNING": "2"}
    for host in range(2):
        hosts.launch(host, PROGRAM, fault, env=limit, agent=agent)
    wait_until(lambda: words in hosts.said(0), "a report", TIMEOUT)
    process = f"process 1 (pid {hosts.pid(1)} on hostb)"
    assert f"{process} has not arrived yet" in hosts.said(0), hosts.said(0)
    lines = f"20 x all-reduce (sum) of 1 x f32, {PROGRAM}:{line_of('total = over_all')} in"
    assert hosts.said(0).count(lines) == (2 if agent else 1), hosts.said(0)
