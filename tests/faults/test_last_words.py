"""A process that leaves says by which line, so that nobody has to ask its host."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from faults.host_jobs import assert_nothing_left, end, everything
from faults.hosts import NEEDED, Hosts
from support import wait_until

pytestmark = NEEDED


@pytest.mark.full
def test_the_line_of_an_exit_is_named_where_its_host_does_not_answer(
    hosts: Hosts, tmp_path: Path
) -> None:
    program = PROGRAMS / "leaves_unasked.py"
    started = [hosts.launch(host, program, str(tmp_path / "stopped")) for host in range(2)]
    try:
        wait_until(lambda: "process 1 (" in hosts.said(0), "an error", 90.0)
        said = "whose program has ended by sys.exit() at leaves_unasked.py:30"
        assert said in hosts.said(0), everything(hosts, 2)
    finally:
        for [_, pid] in hosts.lines(1, "stopped"):
            os.kill(int(pid), signal.SIGCONT)
    assert end(started, hosts)[0] == 1
    assert_nothing_left(hosts)
