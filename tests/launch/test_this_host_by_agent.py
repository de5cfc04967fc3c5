"""``lockstep run --hosts`` on this machine alone: agents without root, namespaces or an sshd."""

from __future__ import annotations

import os
import signal
import sys
import zlib
from pathlib import Path

import pytest

from lanes import full
from own_address import networked, ssh_here
from processes import captured, read_lines, write_command
from support import marked, run_lockstep, start_lockstep, wait_until

PROGRAM = """
import os, sys
read = sys.stdin.read()
print(read, os.environ["LOCKSTEP_LOCAL_PROCESS_ID"], os.environ.get("LOCKSTEP_HOST_ID"), flush=True)
print("to stderr", file=sys.stderr)
if os.environ["LOCKSTEP_PROCESS_ID"] == "2":
    os._exit(5)
"""


def ssh(folder: Path) -> str:
    return ssh_here(folder, "LOCKSTEP_HOST_ID=second")


def test_localhost_needs_no_ssh(tmp_path: Path) -> None:
    options = ["--hosts", "localhost:2", "--ssh", "/no/such/ssh"]
    found = run_lockstep(options, PROGRAM, stdin=b"given")
    assert sorted(found.stdout.splitlines()) == ["[0] given 0 None", "[1]  1 None"]
    assert sorted(found.stderr.splitlines()) == ["[0] to stderr", "[1] to stderr"]


def test_process_0_reads_all_of_the_launchers_input() -> None:
    program = "import sys, zlib; data = sys.stdin.buffer.read(); print(len(data), zlib.crc32(data))"
    data = bytes(range(256)) * 4096
    found = run_lockstep(["--hosts", "localhost:2"], program, stdin=data)
    assert found.by_process == {0: [f"{len(data)} {zlib.crc32(data)}"], 1: ["0 0"]}


@networked
def test_two_agents_of_one_machine_are_two_hosts(tmp_path: Path) -> None:
    options = ["--hosts", "localhost:2,user@second", "--ssh", ssh(tmp_path), "--grace", "1"]
    found = run_lockstep(options, PROGRAM, n=3, expect_status=5)
    assert "[2@second]     0 second" in found.stdout.splitlines()
    assert "[2@second]    to stderr" in found.stderr.splitlines()
    assert "process 2 of 3 on second failed first: exit code 5" in found.stderr
    assert "Its last lines on stderr:\n    to stderr" in found.stderr


def test_a_command_that_starts_no_agent_is_quoted(tmp_path: Path) -> None:
    denied = "echo Welcome; echo permission to enter denied >&2; exit 255"
    options = ["--hosts", "localhost,other", "--ssh", write_command(tmp_path / "ssh", denied)]
    found = run_lockstep(options, PROGRAM, expect_status=None)
    assert found.status in (1, 2)
    assert "permission to enter denied" in found.stderr
    assert found.stdout == ""


@networked
@pytest.mark.parametrize("number", [full(signal.SIGINT), signal.SIGKILL])
def test_the_end_of_the_launcher_is_the_end_of_the_agents(tmp_path: Path, number: int) -> None:
    program = "print('up', flush=True); import time; time.sleep(300)"
    options = ["-n", "2", "--hosts", "localhost,other", "--ssh", ssh(tmp_path)]
    with start_lockstep(options, program) as run:
        read_lines(run.process, 2)
        os.kill(run.process.pid, number)
        run.process.communicate(timeout=60)
        wait_until(lambda: not marked(run.mark), "an end of all processes")
        run.assert_nothing_left()


def test_logs_of_a_later_process_that_cannot_be_made_end_the_job(tmp_path: Path) -> None:
    """No host was asked to start anything then, so none reports an end."""
    (tmp_path / "program.py").write_text("print('started')")
    few_files = ["sh", "-c", 'ulimit -S -n 48 && exec "$@"', "sh"]
    # A launcher that leaves its soft limit as it is, so that the logs have no room for all.
    code = """if True:
        import sys
        from lockstep import cli
        from lockstep.system import fd_limit

        fd_limit.make_room_in_launcher = lambda *_: None
        sys.exit(cli.main())
    """
    lockstep = [sys.executable, "-P", "-c", code, "run"]
    options = ["--hosts", "localhost:24", "--log-dir", str(tmp_path / "logs")]
    ended = captured([*few_files, *lockstep, *options, str(tmp_path / "program.py")])
    assert ended.returncode == 1, ended
    assert " of 24 could not be started: its logs: " in ended.stderr
    assert "Too many open files" in ended.stderr
    assert "started" not in ended.stdout


@pytest.mark.full
@networked
def test_a_job_that_cannot_start_again_says_where_its_logs_are(tmp_path: Path) -> None:
    program = "import os, time\nif os.environ['LOCKSTEP_PROCESS_ID'] == '1':\n"
    program += "    os.kill(os.getppid(), 9)\ntime.sleep(60)\n"
    once = f'mkdir {tmp_path}/used || exit 255\nexec {ssh(tmp_path)} "$@"'
    logs = tmp_path / "logs"
    options = ["--hosts", "localhost,other", "--ssh", write_command(tmp_path / "once", once)]
    options += ["--max-restarts", "1", "--grace", "1", "--log-dir", str(logs)]
    said = run_lockstep(options, program, timeout=90, expect_status=1).stderr
    assert "not started again: 1 of 2 hosts are left, and the job needs 2" in said
    assert "--min-hosts K goes on with K hosts" in said
    assert f"complete logs: {logs}" in said.partition("not started again")[2]


@pytest.mark.full
def test_how_long_a_host_may_take_is_an_option_and_a_variable(tmp_path: Path) -> None:
    silent = write_command(tmp_path / "silent", "exec sleep 300")
    options = ["--hosts", "far:2", "--ssh", silent]
    environ = {"LOCKSTEP_REACH_TIMEOUT": "1"}
    found = run_lockstep(options, PROGRAM, env=environ, expect_status=1)
    assert "no agent answered on far within 1 s" in found.stderr
    options += ["--reach-timeout", "1.5"]
    found = run_lockstep(options, PROGRAM, env=environ, expect_status=1)
    assert "no agent answered on far within 1.5 s" in found.stderr
    options = ["--check-timeout", "0.5", "--hosts", "far:2"]
    found = run_lockstep(options, PROGRAM, expect_status=2)
    assert "'0.5' is not a number of seconds, 1 or more" in found.stderr
