"""One bit of the engine's traffic is changed between two of three hosts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import read_lines
from ssh_hosts import LOCKSTEP, NEEDED, SshHosts, ssh_hosts
from support import assert_unsaid
from tampering import Attacker

pytestmark = NEEDED

TIMEOUT = 120.0
PROGRAM = """
import jax, lockstep
import numpy as np
from jax.experimental import multihost_utils

lockstep.initialize()
step = 0
try:
    while True:
        multihost_utils.process_allgather(np.full(1000, step))
        step += 1
        if step == 20:
            print("up", flush=True)
except Exception as error:
    print("raised", str(error).replace(chr(10), " | "), flush=True)
    raise
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, "abc") as made:
        yield made


@contextlib.contextmanager
def attack(hosts: SshHosts, what: str) -> Iterator[Attacker]:
    attacker = Attacker(hosts.enter("switch"), "b", what, hosts.folder)
    try:
        yield attacker
    finally:
        attacker.end()


def headlines(err: str) -> list[str]:
    """The first and the last line of the report, in either form: the process that fails first may
    be neither of the two between which the traffic was changed."""
    told = re.compile(r"lockstep: .*( failed first: |; so process \d of 3 on [abc] failed )")
    return [line for line in err.splitlines() if told.match(line)]


def test_changed_data_is_the_headline_on_every_process_and_in_the_report(hosts: SshHosts) -> None:
    with attack(hosts, "data") as attacker:
        options = ["--hosts", "a,b,c", "--log-dir", str(hosts.folder / "log")]
        started = hosts.start("a", hosts.run_command(hosts.folder, PROGRAM, *options))
        read_lines(started, 3)
        attacker.strike()
        assert attacker.wait() == "changed data"
        out, err = (text.decode() for text in started.communicate(timeout=TIMEOUT))
    cause = (
        r"a record was changed on its way, from process 1 \(pid \d+ on b\) "
        r"to process [02] \(pid \d+ on [ac]\)"
    )
    raised = [line for line in out.splitlines() if " raised " in line]
    assert len(raised) == 3, out + err
    for line in raised:
        assert re.search(cause, line), line
    headline, *last = headlines(err)
    for line in (headline, *last):
        assert re.search(cause, line), err
    assert "changes the traffic between these hosts" in err, err
    assert_unsaid("cannot be reached", err)
    report = hosts.run("a", [*LOCKSTEP, "report", str(hosts.folder / "log")], check=False)
    assert re.search(cause, " ".join(report.stdout.split("\n")[0:3])), report.stdout
    assert_unsaid("is gone", report.stdout)


@pytest.mark.full
def test_a_changed_handshake_says_so_and_names_no_key_file(hosts: SshHosts) -> None:
    with attack(hosts, "handshakes") as attacker:
        words = hosts.run_command(hosts.folder, PROGRAM, "--hosts", "a,b,c")
        done = hosts.run("a", words, timeout=TIMEOUT, check=False)
        assert attacker.wait() == "changed handshakes"
    assert done.returncode not in (0, None), done.stdout
    headline, *_ = headlines(done.stderr)
    assert "was changed on its way" in headline, done.stderr
    assert_unsaid("LOCKSTEP_KEY_FILE", done.stderr)
    for of_jax in ("Different local topology", "Unable to initialize backend"):
        assert of_jax not in done.stderr, done.stderr
