"""Hosts that are lost, replaced by spares, and come back: agents of this machine alone.

`tests/hosts/test_restart_on_hosts.py` has the same on hosts with an sshd, a network and a power
switch of their own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from hosts.agents_here import (
    Hosts,
    agents_of,
    kill_agents,
    ran,
    read_until,
)
from namespaces import children
from own_address import networked
from support import assert_unsaid

pytestmark = networked


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def test_a_spare_takes_the_processes_of_a_lost_host(hosts: Hosts) -> None:
    options = ["--hosts", "a:2,b,c,d:2", "--spares", "1", "--max-restarts", "3"]
    options += ["--log-dir", str(hosts.folder / "logs")]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 4)
        assert ran(first) == {0: "a", 1: "a", 2: "b", 3: "c"}
        hosts.lose(first[2][1], "b")
        assert ran(hosts.wait_for(1, 4)) == {0: "a", 1: "a", 2: "d", 3: "c"}
        result = hosts.end_well(run, 1)
    assert "d takes the place of b, which was lost, with process 2" in result.stderr
    assert_unsaid("going on with", result.stderr)
    assert re.search(r"attempt 1 starts on 3 of 3 hosts, [\d.]+ s after the failure", result.stderr)
    assert re.search(r"^  host lost +1 ", result.stderr, re.MULTILINE)
    [path] = hosts.folder.glob("logs/run_*/restarts.json")
    [restart] = json.loads(path.read_text())["restarts"]
    changes = {"lost": ["b"], "replaced": [["b", "d"]], "in_use": 3, "seats": 3}
    assert (restart["cause"], restart["hosts"]) == ("host lost", changes)


@pytest.mark.full
def test_a_spare_that_is_lost_too_leaves_fewer_hosts(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3", "--min-hosts", "1"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        hosts.lose(first[1][1], "b")
        second = hosts.wait_for(1, 2)
        assert ran(second) == {0: "a", 1: "c"}
        hosts.lose(second[0][1], "a")
        assert ran(hosts.wait_for(2, 1)) == {0: "c"}
        result = hosts.end_well(run, 2)
    assert "going on with 1 host, 1 process, without\n" in result.stderr


@pytest.mark.full
def test_a_spare_that_does_not_pass_the_checks_is_no_help(hosts: Hosts) -> None:
    """The lost host is reached again then, as without a spare."""
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3", "--check-timeout", "1"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        for pid in agents_of(run, "c"):
            os.kill(pid, signal.SIGSTOP)
        hosts.lose(first[1][1], "b", down=False)
        said = read_until(run, "attempt 1 starts on 2 of 2 hosts")
        assert "spare c: agent no answer within 1 s (facts) (fix: check the load" in said
        assert ran(hosts.wait_for(1, 2)) == {0: "a", 1: "b"}
        hosts.end_well(run, 1, leaves=True)


@pytest.mark.full
def test_a_launcher_that_stood_still_goes_on_with_all_hosts(hosts: Hosts) -> None:
    """The agents in use have ended meanwhile, and no host is to blame, however often that happens.

    The spare is left, because its lease is longer.
    """
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "9"]
    with hosts.start(*options) as run:
        for attempt in range(4):
            agents = hosts.wait_for(attempt, 2)
            os.kill(run.process.pid, signal.SIGSTOP)
            for name, pid in agents.values():
                hosts.lose(pid, name, down=False)
            os.kill(run.process.pid, signal.SIGCONT)
        assert sorted(ran(hosts.wait_for(4, 2)).values()) == ["a", "b"]
        result = hosts.end_well(run, 4)
    assert_unsaid("is not used any more", result.stderr)


def test_all_hosts_are_checked_before_the_start_and_spares_too(hosts: Hosts) -> None:
    (hosts.folder / "down_c").touch()
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3"]
    with hosts.start(*options) as run:
        result = run.finish(60)
    assert result.status == 1
    assert "nothing was started: 1 problem on 1 of 3 hosts" in result.stderr
    assert "c is down" in result.stderr
    assert hosts.ups(0) == {}


@pytest.mark.full
def test_a_spare_whose_agent_ends_is_named_and_comes_back(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        kill_agents(run, "c")
        said = read_until(run, "c answers again: it is a spare from now on")
        assert "lockstep: spare c: its host was lost: " in said
        hosts.lose(first[1][1], "b")
        assert ran(hosts.wait_for(1, 2)) == {0: "a", 1: "c"}
        hosts.end_well(run, 1, leaves=True)


@pytest.mark.full
def test_a_host_that_returns_joins_at_the_next_restart(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "3", "--min-hosts", "1"]
    with hosts.start(*options) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        second = hosts.wait_for(1, 2)
        assert ran(second) == {0: "a", 1: "c"}
        hosts.back("b")
        read_until(run, "b answers again: it takes part from the next restart on")
        hosts.lose(second[1][1], "c", down=False)
        assert ran(hosts.wait_for(2, 3)) == {0: "a", 1: "b", 2: "c"}
        hosts.end_well(run, 2)


JAX = "Metadata-Version: 2.1\nName: jax\nVersion: 0.0.1\n"
LOCKSTEP = "import lockstep; lockstep.__version__ = '99.9'"


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("jax-0.0.1.dist-info/METADATA", JAX, "jax 0.0.1, but "),
        ("sitecustomize.py", LOCKSTEP, "99.9"),
    ],
    ids=["jax", "lockstep"],
)
def test_a_host_that_returns_with_another_version_is_refused(
    hosts: Hosts, file: str, text: str, words: str
) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "3", "--min-hosts", "1"]
    path = hosts.folder / "other" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with hosts.start(*options) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.wait_for(1, 2)
        (hosts.folder / "env_b").write_text(f"export PYTHONPATH={hosts.folder / 'other'}\n")
        hosts.back("b")
        said = read_until(run, "b answers again, and is refused: ")
        said += read_until(run, "\n") if not said.endswith("\n") else ""
        assert words in said.partition("is refused: ")[2]
        hosts.end_well(run, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_launcher_that_is_stopped_for_a_minute_goes_on_with_all_hosts(hosts: Hosts) -> None:
    """All agents have ended by then, that of the spare too."""
    with hosts.start("--hosts", "a,b,c", "--spares", "1", "--max-restarts", "1") as run:
        agents = hosts.wait_for(0, 2)
        launcher = [run.process.pid, *children(run.process.pid)]
        for pid in launcher:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(60)
        ended = not any(Path(f"/proc/{pid}/environ").exists() for _, pid in agents.values())
        for pid in launcher:
            os.kill(pid, signal.SIGCONT)
        assert ran(hosts.wait_for(1, 2)) == {0: "a", 1: "b"}
        result = hosts.end_well(run, 1)
    assert ended
    assert "The launcher stood still for 6" in result.stderr


@pytest.mark.full
def test_a_host_that_flaps_is_not_used_any_more(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "1"]
    with hosts.start(*options) as run:
        hosts.wait_for(0, 2)
        for _ in range(2):
            kill_agents(run, "c")
            read_until(run, "c answers again: it is a spare from now on")
        kill_agents(run, "c")
        read_until(run, "c was lost 3 times, and is not used any more")
        hosts.lose(hosts.ups(0)[1][1], "b")
        result = run.finish(60, leaves=True)
    assert result.status == 1
    said = result.stderr.partition("1 of 2 hosts are left, and the job needs 2")[2]
    assert "b is down" in said
    assert "\n  c was lost 3 times, and is not used any more\n" in said


@pytest.mark.full
def test_too_few_hosts_are_left_and_each_is_named(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--max-restarts", "3", "--min-hosts", "2"]
    with hosts.start(*options) as run:
        hosts.lose(hosts.wait_for(0, 3)[1][1], "b")
        hosts.lose(hosts.wait_for(1, 2)[1][1], "c")
        result = run.finish(60)
    assert result.status == 1
    said = result.stderr.partition("1 of 3 hosts are left, and the job needs 2\n")[2]
    assert re.search(r"^  c +problem +ssh +failed: c is down$", said, re.MULTILINE)
    assert re.search(r"^  b was lost, and has not answered since$", said, re.MULTILINE)
