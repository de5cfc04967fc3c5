"""`lockstep.Pool` on hosts with a real sshd: results, errors, interrupts, and what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from processes import read_lines
from ssh_hosts import NEEDED, SshHosts, hosts_of_module, pid_of

pytestmark = NEEDED

TIMEOUT = 150.0
hosts = hosts_of_module("ab")

COMMON = """
import os, signal, sys, threading, time
import numpy as np
import lockstep

OPTIONS = f"--ssh '{sys.argv[1]}'"

def total():
    import jax
    from jax.experimental import multihost_utils
    every = multihost_utils.process_allgather(jax.numpy.float32(1 + jax.process_index()))
    return jax.process_index(), os.uname().nodename, float(every.sum())

def notes(error):
    return "|".join(error.__notes__).replace("\\n", "|")
"""


def words(hosts: SshHosts, folder: Path, source: str) -> list[str]:
    program = folder / "program.py"
    program.write_text(COMMON + textwrap.dedent(source))
    return [sys.executable, str(program), hosts.ssh()]


def run(hosts: SshHosts, folder: Path, source: str) -> list[str]:
    """The lines that the program prints on host a."""
    found = hosts.run("a", words(hosts, folder, source), timeout=TIMEOUT)
    hosts.assert_nothing_left()
    return found.stdout.splitlines()


CALLS = """
def exchange(data):
    total()
    print(f"{len(data)} bytes on {os.uname().nodename}", flush=True)
    return data[::-1]

def fail():
    total()
    import jax
    if jax.process_index() == 1:
        raise ValueError("no data on this host")
    total()

with lockstep.Pool(devices=2, hosts=["a", "b"], options=OPTIONS) as pool:
    print(pool.run(total))
    pids = pool.pids
    data = os.urandom(3_000_000)  # more than one window of the relay
    print([each == data[::-1] for each in pool.run(exchange, (data,))])
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        pool.run(time.sleep, (100,))
    except KeyboardInterrupt:
        print("interrupted", pool.run(os.getpid) == pids)
    try:
        pool.run(fail, timeout=60)
    except ValueError as error:
        print("error:", error)
        print("cause:", str(error.__cause__).strip().replace("\\n", "|"))
        print("notes:", notes(error))
    try:
        lockstep.spawn(total, hosts="a,nowhere", options=OPTIONS)
    except lockstep.SpawnError as error:
        print("bad host:", str(error).replace("\\n", "|"))
"""


@pytest.mark.full
def test_calls_run_on_all_hosts_and_errors_name_the_host(hosts: SshHosts, tmp_path: Path) -> None:
    lines = run(hosts, tmp_path, CALLS)
    assert lines[0] == "[(0, 'a', 3.0), (1, 'b', 3.0)]"
    assert sorted(lines[1:3]) == ["[0@a] 3000000 bytes on a", "[1@b] 3000000 bytes on b"]
    assert lines[3] == "[True, True]"
    assert lines[4] == "interrupted True"
    error, cause, notes, bad = lines[5:]
    assert error == "error: no data on this host"
    assert cause.startswith("cause: process 1 of 2 on b:|Traceback (most recent call last):")
    assert "in fail|" in cause
    assert "process 0 on a waited for it in a collective, and was aborted" in notes
    assert "process 1 left the function; the others wait for it" in notes
    assert "nothing was started: 1 problem on 1 of 2 hosts|" in bad
    assert "the name nowhere is not known" in bad


ENDS = """
def die():
    import jax
    if jax.process_index() == 1:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    total()

def sleep_somewhere():
    import jax
    if jax.process_index() == 1:
        time.sleep(100)

with lockstep.Pool(devices=1, hosts="a,b", options=OPTIONS) as pool:
    try:
        pool.run(die)
    except lockstep.SpawnError as error:
        print(str(error).replace("\\n", "|"))
        print(notes(error))
    print(pool.run(total))
    try:
        pool.run(sleep_somewhere, timeout=0.5)
    except lockstep.SpawnTimeoutError as error:
        print(error)
        print(notes(error))
with lockstep.Pool(devices=1, hosts="a,b", options=OPTIONS, collectives="gloo") as pool:
    print(pool.run(total))
"""


@pytest.mark.full
def test_deaths_and_deadlines_on_another_host(hosts: SshHosts, tmp_path: Path) -> None:
    lines = [line for line in run(hosts, tmp_path, ENDS) if "[Gloo]" not in line]
    assert len(lines) == 6, lines
    died, notes, again, late, stacks, gloo = lines
    assert died.startswith("process 1 of 2 on b died: killed by SIGKILL (signal 9)")
    assert re.search(r"Its last lines on stderr:\|(    W[^|]*\|)?    last words$", died)
    assert "process 0 on a failed" in notes
    assert again == gloo == "[(0, 'a', 3.0), (1, 'b', 3.0)]"
    assert late.startswith("process 1 of 2 did not return in time")
    assert "process 1 on b did not return and was stopped. It was here:" in stacks
    assert "in sleep_somewhere" in stacks


STAYS = """
def sleep():
    total()
    print("up", flush=True)
    time.sleep(300)

pool = lockstep.Pool(devices=1, hosts="a,b", options=OPTIONS)
try:
    pool.run(sleep)
except lockstep.SpawnError as error:
    print(error)
    pool.close()
"""


def started(hosts: SshHosts, folder: Path) -> subprocess.Popen[bytes]:
    """A program whose pool is in a call on both hosts."""
    process = hosts.start("a", words(hosts, folder, STAYS))
    read_lines(process, 2)
    return process


@pytest.mark.full
def test_kill_9_of_the_program_leaves_nothing_on_any_host(hosts: SshHosts, tmp_path: Path) -> None:
    os.kill(pid_of(started(hosts, tmp_path)), signal.SIGKILL)
    hosts.assert_nothing_left(30.0)


@pytest.mark.full
def test_a_host_that_is_cut_off_ends_the_call(hosts: SshHosts, tmp_path: Path) -> None:
    process = started(hosts, tmp_path)
    hosts.cut("b")
    try:
        said = process.communicate(None, TIMEOUT)[0].decode()
    finally:
        hosts.mend("b")
    assert "process 1 of 2 on b died: its host was lost: no answer from b for 10 s" in said
    hosts.assert_nothing_left(30.0)
