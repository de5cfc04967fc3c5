"""A host that answers again while its lost agent still runs: never do two attempts run at once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hosts.agents_here import Hosts, ran, read_until
from own_address import networked, own_address

pytestmark = [networked, pytest.mark.full, pytest.mark.timeout(120)]

LINK = """
import os, pathlib, subprocess, sys
# The agent has the other ends of both itself, so it does not notice that the connection is gone.
inp, out = (f"{sys.argv[1]}/{name}" for name in ("inp", "out"))
os.mkfifo(inp)
os.mkfifo(out)
ends = [os.open(each, os.O_RDWR) for each in (inp, out)]
command = ["sh", "-c", sys.argv[2]]
subprocess.Popen(command, stdin=ends[0], stdout=ends[1], start_new_session=True)
to, back = os.open(inp, os.O_WRONLY), os.open(out, os.O_RDONLY)
pathlib.Path(sys.argv[1], "link").write_text(str(os.getpid()))
if os.fork():
    while data := os.read(0, 65536):
        os.write(to, data)
else:
    while data := os.read(back, 65536):
        os.write(1, data)
"""
PROGRAM = """
import os, pathlib, time
number, attempt = os.environ["LOCKSTEP_PROCESS_ID"], os.environ["LOCKSTEP_ATTEMPT"]
folder = pathlib.Path({folder!r})
journal = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
host, agent = os.environ["LOCKSTEP_HOST_ID"], os.getppid()
(folder / f"up_{{attempt}}_{{number}}_x_{{host}}_{{agent}}").touch()
while not (folder / f"end_{{attempt}}").exists():
    os.write(journal, f"{{attempt}}\\n".encode())
    time.sleep(0.01)
"""


def test_the_next_attempt_waits_for_the_lease_of_the_lost_agent(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    link = tmp_path / "link.py"
    link.write_text(LINK)
    address = own_address()
    environ = tmp_path / "env_b"
    environ.write_text(
        f'export LOCKSTEP_HOST_ID=b SSH_CONNECTION="{address} 1 {address} 22"\n'
        f'exec {sys.executable} {link} {tmp_path} "${{@: -1}}"\n'
    )
    options = ["--hosts", "a,b", "--max-restarts", "1", "--grace", "8"]
    with hosts.start(*options, program=PROGRAM) as run:
        hosts.wait_for(0, 2)
        environ.unlink()
        pid = int((tmp_path / "link").read_text())
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (*map(int, children), pid):
            os.kill(each, signal.SIGKILL)
        read_until(run, "b answers again")
        read_until(run, "until the processes on b have ended")
        assert ran(hosts.wait_for(1, 2)) == {0: "a", 1: "b"}
        hosts.end(1)
        result = run.finish(60)
    assert result.status == 0, result.stderr
    attempts = (tmp_path / "journal").read_text().split()
    assert attempts == sorted(attempts)
