"""``lockstep run --hosts`` on hosts with a real sshd: starts, ends, signals, and what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from lanes import full
from processes import read_lines
from ssh_hosts import LOCKSTEP, NEEDED, SshHosts, hosts_of_module, pid_of
from support import assert_unsaid, wait_until

pytestmark = NEEDED

TIMEOUT = 90.0
SLEEP = "print('up', flush=True); import time; time.sleep(300)"
hosts = hosts_of_module("abc")


def run(
    hosts: SshHosts, folder: Path, source: str, *options: str
) -> subprocess.CompletedProcess[str]:
    words = hosts.run_command(folder, source, *options)
    return hosts.run("a", words, timeout=TIMEOUT, check=False)


def start(hosts: SshHosts, folder: Path, source: str, *options: str) -> subprocess.Popen[bytes]:
    """The launcher, once every process has printed ``up``."""
    started = hosts.start("a", hosts.run_command(folder, source, *options))
    read_lines(started, 3)
    return started


JOB = """
import os, sys
import jax, lockstep
import jax.numpy as jnp
from jax.experimental import multihost_utils

lockstep.initialize()
process = jax.process_index()
every = multihost_utils.process_allgather(jnp.array([process])).ravel().tolist()
place = [os.environ["LOCKSTEP_LOCAL_PROCESS_ID"], os.environ["LOCKSTEP_LOCAL_NUM_PROCESSES"]]
said = sys.stdin.read()
print(every, os.uname().nodename, *place, os.environ["GIVEN"], os.getcwd(), repr(said))
key = next(iter(open(os.path.join(os.environ["LOCKSTEP_RUN_DIR"], "secret"))))
def of_all(name):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{pid}/{name}").read()
        except OSError:
            pass
seen = any(key in text for name in ("cmdline", "environ") for text in of_all(name))
tables = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
at = sorted({words[1] for words in tables if words[3] == "0A"})
port = "%04X" % int(os.environ["LOCKSTEP_COORDINATOR"].rpartition(":")[2])
where = [each for each in at if each.endswith(":" + port)]
multihost_utils.process_allgather(jnp.array([process]))
print("key seen:", seen, "mode:", oct(os.stat(os.environ["LOCKSTEP_RUN_DIR"] + "/secret").st_mode))
print("collectives:", jax.config.jax_cpu_collectives_implementation, "service:", where)
"""


@pytest.mark.full
def test_a_job_runs_on_all_slots_of_all_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    options = ["--hosts", "a:2,b,c", "--export", "GIVEN=x y", "--log-dir", str(tmp_path / "logs")]
    found = run(hosts, tmp_path, JOB, *options)
    assert found.returncode == 0, found
    lines = found.stdout.splitlines()
    for process, (host, local, count) in enumerate(
        [("a", 0, 2), ("a", 1, 2), ("b", 0, 1), ("c", 0, 1)]
    ):
        mark = f"[{process}@{host}] "
        expected = f"{mark}[0, 1, 2, 3] {host} {local} {count} x y {tmp_path} ''"
        assert expected in lines
        assert f"{mark}key seen: False mode: 0o100600" in lines
        # At 10.9.0.1 alone, the address of the first host in the network between the hosts.
        where = r"\['\w*0100090A:\w+'\]" if host == "a" else r"\[\]"
        assert re.search(
            rf"^\[{process}@{host}\] collectives: mpi service: {where}$", found.stdout, re.MULTILINE
        ), found.stdout
        [log] = (tmp_path / "logs").glob(f"run_*/attempt_0/process_{process}/stdout.log")
        assert log.read_text().startswith("[0, 1, 2, 3]")
    assert_unsaid("lockstep", found.stderr)
    hosts.assert_nothing_left()


FAILS = """
import os, sys, time
import jax, lockstep
import jax.numpy as jnp
from jax.experimental import multihost_utils

lockstep.initialize()
process, attempt = jax.process_index(), int(os.environ["LOCKSTEP_ATTEMPT"])
multihost_utils.process_allgather(jnp.array([process]))
if process == 2 and attempt == 0:
    time.sleep(1)  # the others are to wait by then
    raise ValueError("no such thing")
multihost_utils.process_allgather(jnp.array([process]))
print("attempt", attempt)
"""


@pytest.mark.full
def test_a_failure_is_told_as_on_one_host_and_the_job_starts_again(
    hosts: SshHosts, tmp_path: Path
) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "1"]
    found = run(hosts, tmp_path, FAILS, *options)
    assert found.returncode == 0, found
    said = found.stderr
    assert "process 2 of 3 on c failed first: ValueError: no such thing (exit code 1)" in said
    assert re.search(r"process.* failed [\d.]+ (to [\d.]+ )?s later: process 2 had failed", said)
    assert re.search(
        r"process(es)? [01](-1)? waited in (its|their) 2nd: all-gather of 1 x s32", said
    )
    assert "attempt 0 has failed; starting again (1 restart left)" in said
    after = sorted(found.stdout.splitlines())
    assert after == ["[0@a] attempt 1", "[1@b] attempt 1", "[2@c] attempt 1"]
    hosts.assert_nothing_left()


@pytest.mark.full
def test_the_records_of_all_hosts_are_kept_for_the_report(hosts: SshHosts, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    once = run(hosts, tmp_path, FAILS, "--hosts", "a,b,c", "--log-dir", str(logs))
    assert once.returncode == 1
    [folder] = re.findall(r"lockstep report (\S+)", once.stderr)
    report = hosts.run("a", [*LOCKSTEP, "report", folder], check=False)
    assert report.returncode == 1
    assert re.search(r"> process 2 \(pid \d+ on c\): failed after 1 collective", report.stdout)
    assert "waited for process 2 in all-gather" in report.stdout
    hosts.assert_nothing_left()


@pytest.mark.parametrize(
    ("number", "status", "saves"), [(signal.SIGINT, 130, True), full(signal.SIGTERM, 143, False)]
)
def test_signals_stop_the_processes_of_all_hosts(
    hosts: SshHosts, tmp_path: Path, number: int, status: int, saves: bool
) -> None:
    source = """
    import time
    try:
        print('up', flush=True)
        time.sleep(300)
    finally:
        print('saved')
    """
    started = start(hosts, tmp_path, source, "--hosts", "a,b,c")
    os.kill(pid_of(started), number)
    out, err = started.communicate(timeout=TIMEOUT)
    assert started.returncode == status
    assert f"stopped by {signal.Signals(number).name}" in err.decode()
    saved = sorted(line for line in out.decode().splitlines() if line.endswith("saved"))
    assert saved == (["[0@a] saved", "[1@b] saved", "[2@c] saved"] if saves else [])
    hosts.assert_nothing_left()


def test_kill_of_the_launcher_leaves_no_process_on_any_host(
    hosts: SshHosts, tmp_path: Path
) -> None:
    started = start(hosts, tmp_path, SLEEP, "--hosts", "a,b,c")
    os.kill(pid_of(started), signal.SIGKILL)
    started.communicate(timeout=TIMEOUT)
    hosts.assert_nothing_left()


@pytest.mark.parametrize("which", [0, full(1)])
def test_kill_of_an_agent_ends_the_job_and_names_the_host(
    hosts: SshHosts, tmp_path: Path, which: int
) -> None:
    started = start(hosts, tmp_path, SLEEP, "--hosts", "a,b,c", "--grace", "1")
    os.kill(hosts.agents("b")[which], signal.SIGKILL)
    _, err = started.communicate(timeout=TIMEOUT)
    assert started.returncode == 1
    said = err.decode()
    assert "process 1 of 3 on b failed first: its host was lost: the agent on b has ended" in said
    assert "The agent of a lost host ends its processes, and itself" in said
    own = "exit code 137: lockstep: the agent of this host was killed by SIGKILL; all processes of "
    assert (f"{own}this host were killed" in said) == bool(which), said
    hosts.assert_nothing_left()


@pytest.mark.full
def test_an_ssh_of_this_machine_that_is_killed_is_not_called_the_agent(
    hosts: SshHosts, tmp_path: Path
) -> None:
    started = start(hosts, tmp_path, SLEEP, "--hosts", "a,b,c", "--grace", "1")
    [ssh] = hosts.matching("a", "^ssh .*-- b ")
    os.kill(ssh, signal.SIGKILL)
    _, err = started.communicate(timeout=TIMEOUT)
    assert re.search(
        r"process 1 of 3 on b failed first: its host was lost: ssh to b \(process \d+ on this "
        r"machine\) was killed by SIGKILL\. The agent of a lost host ends its processes",
        err.decode(),
    ), err
    hosts.assert_nothing_left(40.0)


@pytest.mark.full
def test_much_output_arrives_whole_and_what_is_left_running_is_ended(
    hosts: SshHosts, tmp_path: Path
) -> None:
    source = """
    import os, subprocess
    line = os.environ["LOCKSTEP_PROCESS_ID"] * 999
    for _ in range(4000):
        print(line)
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    """
    found = run(hosts, tmp_path, source, "--hosts", "a,b,c")
    assert found.returncode == 0
    lines = found.stdout.splitlines()
    expected = {f"[{i}@{h}] {str(i) * 999}": 4000 for i, h in enumerate("abc")}
    assert {line: lines.count(line) for line in set(lines)} == expected
    assert "killed 3 processes that the program left running" in found.stderr
    hosts.assert_nothing_left()


LOOPS = """
import os, time
import jax, lockstep
import jax.numpy as jnp
from jax.experimental import multihost_utils

lockstep.initialize()
print("up", flush=True)
try:
    while True:
        multihost_utils.process_allgather(jnp.ones(4))
        time.sleep(0.05)
except Exception as error:
    print("raised:", str(error).splitlines()[0], flush=True)
    raise
"""


@pytest.mark.full
def test_report_and_top_show_all_hosts_and_a_cut_host_makes_the_others_raise(
    hosts: SshHosts, tmp_path: Path
) -> None:
    started = start(hosts, tmp_path, LOOPS, "--hosts", "c,b,a", "--grace", "20")
    for words in (["top", "--once"], ["report"]):

        def shows_all(words: list[str] = words) -> bool:
            shown = hosts.run("a", [*LOCKSTEP, *words], check=False).stdout
            return all(re.search(rf"\bon {n}\)|│ {n} ", shown) for n in "abc")

        wait_until(shows_all, f"{words} shows all hosts", 30)
    try:
        hosts.cut("b")
        out, err = started.communicate(timeout=TIMEOUT)
    finally:
        hosts.mend("b")
    assert started.returncode == 1
    assert "process 1 of 3 on b failed first: its host was lost: no answer from b" in err.decode()
    raised = [line for line in out.decode().splitlines() if "raised:" in line]
    assert len(raised) == 2
    assert all("cannot reach host b (process 1)" in line for line in raised)
    hosts.assert_nothing_left(40.0)
